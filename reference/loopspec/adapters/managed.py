"""Managed targets: released loops that are installed, apart and with pinned versions, to be run.

A target of the catalogue is a folder with a manifest, an adapter and a full list of pinned
versions. To run it on a fresh machine, its library is installed into an environment of its own in
the user's cache, so that it shares nothing with the suite and the same versions come every time.

An environment is named by a hash of everything that decides what is in it, and is never changed
afterwards. It is built beside its place and moved there by one rename: what stands at the place is
whole, so a warm cache needs neither lock nor network, and an interrupted build leaves nothing that
could be taken for an environment. A lock, held by the operating system and so gone with its
holder, keeps two runs from building the same one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from loopspec.adapters.manifest import Manifest, load_manifest

CATALOGUE = Path(__file__).parent / "catalogue"
KITS = Path(__file__).parent / "kits"

Progress = Callable[[str], None]

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^\]]*\])?")
_PRIVATE = ("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "LANGCHAIN_", "LANGSMITH_", "LOGFIRE_")
_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LOGFIRE_SEND_TO_LOGFIRE": "false",
    "OTEL_SDK_DISABLED": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
}


class TargetUnavailable(Exception):
    """A target cannot be run here. ``remedy`` says what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}\n{remedy}")
        self.remedy = remedy


# --------------------------------------------------------------------------------------------
# The catalogue


def available() -> list[Manifest]:
    """The manifests of all managed targets, by name."""
    return [_load(path.parent) for path in sorted(CATALOGUE.glob("*/manifest.toml"))]


def load_target(name: str, version: str | None = None) -> Manifest:
    """The manifest of one managed target.

    Parameters
    ----------
    name: as the target is called; ``-`` and ``_`` are the same.
    version: of its main library, instead of the pinned one.

    A name that the catalogue does not have, or a version that is not one, raises
    :class:`TargetUnavailable`.
    """
    folder = CATALOGUE / re.sub(r"[^a-z0-9]+", "_", name.lower())
    if not (folder / "manifest.toml").is_file():
        known = ", ".join(manifest.name for manifest in available())
        raise TargetUnavailable(f"there is no managed target {name!r}", f"Known targets: {known}.")
    manifest = _load(folder)
    return manifest if version is None else manifest.model_copy(update={"version": _checked(version)})


def _load(folder: Path) -> Manifest:
    """A manifest whose files are named by whole paths."""
    manifest = load_manifest(folder / "manifest.toml")
    adapter, constraints = manifest.adapter, manifest.constraints
    return manifest.model_copy(
        update={
            "adapter": str(folder / adapter) if adapter else None,
            "constraints": str(folder / constraints) if constraints else None,
        }
    )


def _checked(version: str) -> str:
    if not _VERSION.fullmatch(version):
        raise TargetUnavailable(f"{version!r} is not a version", "Name one as the package index does.")
    return version


# --------------------------------------------------------------------------------------------
# What is installed


def requirements(manifest: Manifest, version: str | None = None) -> tuple[list[str], list[str]]:
    """What to install and under which constraints.

    The first entry of ``requires`` is the main library. For another version than the pinned one
    its own pin is dropped, and with it those that are marked ``# moves with`` it: packages that a
    project releases together and ties to each other.
    """
    if not manifest.requires or not (main := _REQUIREMENT.match(manifest.requires[0])):
        raise TargetUnavailable(
            f"target {manifest.name} does not say what it requires",
            "Its manifest needs 'requires', with the main library first.",
        )
    wanted = _checked(version or manifest.version)
    lines: list[str] = []
    if manifest.constraints is not None:
        text = Path(manifest.constraints).read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.split("#")[0].strip()]
    name = _canonical(main["name"])
    pins = {_canonical(line.split("==")[0]): line.split("#")[0].split("==")[-1].strip() for line in lines}
    if pins.get(name, wanted) != wanted:
        lines = [
            line for line in lines if _canonical(line.split("==")[0]) != name and "# moves with" not in line
        ]
    first = f"{main['name']}{main['extras'] or ''}=={wanted}"
    return [first, *manifest.requires[1:]], [line.split("#")[0].strip() for line in lines]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def cache_folder() -> Path:
    """Where environments are kept: ``LOOPSPEC_CACHE``, or this user's cache."""
    given = os.environ.get("LOOPSPEC_CACHE")
    return Path(given) if given else user_cache_path("loopspec")


def _key(requires: Sequence[str], constraints: Sequence[str], python: str) -> str:
    parts = "\0".join(["1", *requires, "", *sorted(constraints), "", _identity(python)])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _identity(python: str) -> str:
    """Which interpreter this is, as far as it decides what is installed."""
    words = "import sys, sysconfig; print(sys.implementation.cache_tag, *sys.version_info, sysconfig.get_platform())"
    return _run([python, "-c", words], {}, f"{python} does not run", "Name a Python that does.").strip()


def _interpreter(manifest: Manifest) -> str:
    if manifest.python is None:
        return sys.executable
    found = shutil.which(manifest.python)
    if found is None:
        raise TargetUnavailable(
            f"target {manifest.name} needs {manifest.python}, which is not here",
            f"Install {manifest.python} and put it on PATH.",
        )
    return found


# --------------------------------------------------------------------------------------------
# Preparing


def prepare(
    manifest: Manifest, *, version: str | None = None, progress: Progress | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that starts the adapter's child, and the variables to lay over our environment.

    The target is installed first if it is not yet.

    Parameters
    ----------
    manifest: of a managed target, as :func:`load_target` gives it.
    version: of its main library, instead of the manifest's.
    progress: called with a line for a person before each step that takes time.

    What stands in the way is raised as :class:`TargetUnavailable`.
    """
    if manifest.command:
        return list(manifest.command), environment()
    if manifest.language != "python" or manifest.adapter is None:
        raise TargetUnavailable(
            f"target {manifest.name} is not one that can be installed",
            "Give its manifest a 'command', or language 'python' with an 'adapter'.",
        )
    requires, constraints = requirements(manifest, version)
    python = _interpreter(manifest)
    place = cache_folder() / "targets" / f"{manifest.name}-{_key(requires, constraints, python)}"
    if not _whole(place):
        say = progress or _silent
        with _locked(place.with_name(f"{place.name}.lock"), say):
            if not _whole(place):
                _build(place, python, requires, constraints, say)
    return [str(_python_of(place)), manifest.adapter], environment()


def environment(ours: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is laid over ``ours`` (this process's variables, if not given) for an adapter's child.

    The kit can be imported, nothing is asked through a proxy, telemetry is off, and no credential
    or address of a real provider is passed on: an empty value takes its place.
    """
    silenced = {
        name: ""
        for name in (os.environ if ours is None else ours)
        if name.startswith(_PRIVATE)
        or name.lower().endswith("_proxy")
        or name in ("PYTHONHOME", "VIRTUAL_ENV")
    }
    loopback = "127.0.0.1,localhost"
    return {
        **silenced,
        **_QUIET,
        "PYTHONPATH": str(KITS),
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
    }


def _silent(line: str) -> None:
    """Progress that nobody asked for."""


def _python_of(place: Path) -> Path:
    return place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _whole(place: Path) -> bool:
    """Whether an environment stands there, and its interpreter has not gone since."""
    return _python_of(place).exists()


def _build(
    place: Path, python: str, requires: Sequence[str], constraints: Sequence[str], say: Progress
) -> None:
    """Build the environment beside its place, and move it there."""
    for left in place.parent.glob(f"{place.name}.building-*"):
        shutil.rmtree(left, ignore_errors=True)  # by a run that was killed: the lock is ours now
    shutil.rmtree(place, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{place.name}.building-", dir=place.parent))
    try:
        say(f"Installing {requires[0]} and what it needs, once")
        files = {"requirements.txt": requires, "constraints.txt": constraints}
        for name, lines in files.items():
            (building / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for command in _install_commands(building / "venv", python, building):
            _run(
                command,
                {"UV_PYTHON_DOWNLOADS": "never", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                f"{requires[0]} cannot be installed",
                "Check that the package index can be reached and has these versions for this Python, "
                "then run again. Once installed, no network is needed.",
            )
        (building / "venv").rename(place)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _install_commands(venv: Path, python: str, lists: Path) -> list[list[str]]:
    wanted = ["-r", str(lists / "requirements.txt"), "-c", str(lists / "constraints.txt")]
    uv = _uv()
    if uv is not None:
        return [
            [*uv, "venv", "--quiet", "--no-project", "--relocatable", "--python", python, str(venv)],
            [*uv, "pip", "install", "--quiet", "--python", str(_python_of(venv)), *wanted],
        ]
    return [
        [python, "-m", "venv", str(venv)],
        [str(_python_of(venv)), "-m", "pip", "install", "--quiet", "--no-input", *wanted],
    ]


def _uv() -> list[str] | None:
    """How to call uv, if it is here: installed beside us, or on PATH."""
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    return [found] if found else None


def _run(command: Sequence[str], extra: Mapping[str, str], failure: str, remedy: str) -> str:
    """Run a command and return its output; raises :class:`TargetUnavailable` with its last words."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            list(command), env={**env, **extra}, check=False, capture_output=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise TargetUnavailable(f"{failure}: {error}", remedy) from None
    if done.returncode:
        last = "\n".join(f"  {line}" for line in (done.stderr or done.stdout).strip().splitlines()[-12:])
        raise TargetUnavailable(f"{failure}:\n{last}", remedy)
    return done.stdout


@contextmanager
def _locked(path: Path, say: Progress) -> Iterator[None]:
    """Hold the lock at ``path``; wait for whoever has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise TargetUnavailable(
            f"the cache cannot be written: {error}", "Set LOOPSPEC_CACHE to a folder that can be."
        ) from None
    with file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another run is installing it; waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
