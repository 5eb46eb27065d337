"""Managed targets: what the catalogue says, and how a target gets its environment.

Nothing here contacts a package index: a hand-made wheel in a local folder is all there is.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loopspec.adapters import managed
from loopspec.adapters.managed import TargetUnavailable
from loopspec.adapters.manifest import Manifest, interpret

TARGETS = [pytest.param(manifest, id=manifest.name) for manifest in managed.available()]


# --------------------------------------------------------------------------------------------
# The catalogue


def test_the_catalogue_has_the_targets():
    names = {manifest.name for manifest in managed.available()}

    assert {"openai-agents", "pydantic-ai", "langchain"} <= names


@pytest.mark.parametrize("manifest", TARGETS)
def test_a_manifest_is_found_by_its_name(manifest):
    assert managed.load_target(manifest.name) == manifest


@pytest.mark.parametrize("manifest", TARGETS)
def test_every_claim_and_outcome_says_where_it_is_documented(manifest):
    for entry in (*manifest.claims, *manifest.outcomes):
        assert entry.source.startswith("https://"), entry
    for claim in manifest.claims:
        assert claim.words, claim


@pytest.mark.parametrize("manifest", TARGETS)
def test_every_variant_says_what_it_is(manifest):
    for name, variant in manifest.variants.items():
        assert variant.words, name
        assert variant.cancel in ("native", "task"), name
        assert manifest.claims_for(name)


PYTHON_TARGETS = [
    pytest.param(manifest, id=manifest.name)
    for manifest in managed.available()
    if manifest.language == "python" and manifest.constraints
]


@pytest.mark.parametrize("manifest", PYTHON_TARGETS)
def test_everything_is_pinned(manifest):
    requires, constraints = managed.requirements(manifest)

    assert requires[0].endswith(f"=={manifest.version}")
    assert all(line.count("==") == 1 for line in constraints)
    pinned = {line.split("==")[0].lower() for line in constraints}
    assert {line.split("==")[0].split("[")[0] for line in requires} <= pinned


@pytest.mark.parametrize("manifest", PYTHON_TARGETS)
def test_an_adapter_is_written_against_the_kit_alone(manifest):
    tree = ast.parse(Path(manifest.adapter).read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert "loopspec_kit" in imported
    assert "loopspec" not in imported


@pytest.mark.parametrize(
    ("target", "raised", "reason"),
    [
        ("openai-agents", "agents.exceptions.MaxTurnsExceeded", "limit"),
        ("openai-agents", "openai.APIError", "provider"),
        ("pydantic-ai", "pydantic_ai.exceptions.RunCancelled", "cancelled"),
        ("pydantic-ai", "pydantic_ai.exceptions.UsageLimitExceeded", "limit"),
        ("langchain", "langgraph.errors.GraphRecursionError", "limit"),
        ("langchain", "asyncio.exceptions.CancelledError", "cancelled"),
    ],
)
def test_documented_exceptions_have_their_meaning(target, raised, reason):
    chain = [{"type": "some.Subclass", "mro": ["some.Subclass", raised], "message": "", "fields": {}}]

    meaning = interpret({"raised": chain}, managed.load_target(target))

    assert (meaning.outcome, meaning.reason) == ("failed", reason)


def test_a_run_that_ended_without_a_final_output_failed():
    value = {"text": None, "final_output_type": "NoneType"}

    meaning = interpret({"returned": value}, managed.load_target("openai-agents"))

    assert (meaning.outcome, meaning.reason) == ("failed", "unknown")


def test_an_unknown_target_is_named_with_those_that_there_are():
    with pytest.raises(TargetUnavailable, match="no managed target 'nothing'") as caught:
        managed.load_target("nothing")

    assert "openai-agents" in caught.value.remedy


def test_another_version_can_be_asked_for():
    assert managed.load_target("openai-agents", "0.23.1").version == "0.23.1"


@pytest.mark.parametrize("version", ["", "--index-url=x", "1 ; y", "@ file:///x"])
def test_a_version_is_a_version_and_nothing_else(version):
    with pytest.raises(TargetUnavailable, match="not a version"):
        managed.load_target("openai-agents", version)


# --------------------------------------------------------------------------------------------
# What is installed


def _wheel(folder: Path, name: str, version: str, needs: str | None = None) -> None:
    """A wheel of one module that says its version."""
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{info}/RECORD,,"]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(text)}")
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{line}\n" for line in record))


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A target whose library exists in versions 1.0 and 2.0 in a local folder, and a cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        _wheel(wheels, "tinyloop", version, needs="tinyhelp")
    for version in ("0.1", "0.2"):
        _wheel(wheels, "tinyhelp", version)
    for name, value in {
        "LOOPSPEC_CACHE": str(tmp_path / "cache"),
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheels),
        "UV_NO_CONFIG": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    adapter = tmp_path / "adapter.py"
    adapter.write_text("import tinyhelp, tinyloop\nprint(tinyloop.VERSION, tinyhelp.VERSION)\n")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("tinyhelp==0.1\ntinyloop==1.0\n")
    return Manifest(
        name="tiny",
        version="1.0",
        adapter=str(adapter),
        requires=("tinyloop==1.0",),
        constraints=str(constraints),
    )


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _places() -> list[str]:
    return sorted(path.name for path in (managed.cache_folder() / "targets").glob("*") if path.is_dir())


def test_a_target_is_installed_as_pinned(target):
    command, env = managed.prepare(target)

    assert _output(command) == "1.0 0.1"
    assert env == managed.environment()


@pytest.mark.skipif(sys.platform == "win32", reason="the system's python has another name")
def test_without_uv_the_standard_library_does_it(target, monkeypatch):
    monkeypatch.setattr(managed, "_uv", lambda: None)

    command, _ = managed.prepare(target)

    assert _output(command) == "1.0 0.1"


def test_a_warm_cache_starts_nothing_but_the_interpreter(target, monkeypatch):
    first = managed.prepare(target)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the cache is warm")

    monkeypatch.setattr(managed, "_build", refuse)
    monkeypatch.setattr(managed, "_locked", refuse)

    assert managed.prepare(target) == first


def test_progress_is_told_once(target):
    lines: list[str] = []
    managed.prepare(target, progress=lines.append)
    managed.prepare(target, progress=lines.append)

    assert lines == ["Installing tinyloop==1.0 and what it needs, once"]


def test_another_version_drops_the_pin_of_the_main_library_only(target):
    command, _ = managed.prepare(target, version="2.0")

    assert _output(command) == "2.0 0.1"


def test_a_pin_that_moves_with_the_main_library_is_dropped_too(target):
    Path(target.constraints).write_text("tinyhelp==0.1  # moves with tinyloop\ntinyloop==1.0\n")

    assert _output(managed.prepare(target)[0]) == "1.0 0.1"
    assert _output(managed.prepare(target, version="2.0")[0]) == "2.0 0.2"


def test_other_constraints_are_another_environment(target):
    managed.prepare(target)
    Path(target.constraints).write_text("tinyhelp==0.2\ntinyloop==1.0\n")
    managed.prepare(target)

    assert len(_places()) == 2


def test_what_cannot_be_installed_says_so_and_leaves_nothing(target):
    with pytest.raises(TargetUnavailable, match=r"tinyloop==3\.0 cannot be installed") as caught:
        managed.prepare(target, version="3.0")

    assert "package index" in caught.value.remedy
    assert _places() == []


def test_an_interrupted_build_leaves_nothing_usable(target, monkeypatch):
    run = managed._run

    def interrupted(command, *rest):
        if "install" in command:
            raise KeyboardInterrupt
        return run(command, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(managed, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            managed.prepare(target)
    assert _places() == []

    assert _output(managed.prepare(target)[0]) == "1.0 0.1"


def test_what_a_killed_build_left_is_cleaned(target):
    place = Path(managed.prepare(target)[0][0]).parent.parent
    left = place.with_name(f"{place.name}.building-killed")
    place.rename(left)  # as if the rename had never come

    assert _output(managed.prepare(target)[0]) == "1.0 0.1"
    assert _places() == [place.name]


def test_an_environment_whose_interpreter_is_gone_is_built_again(target):
    command, _ = managed.prepare(target)
    Path(command[0]).unlink()

    assert managed.prepare(target)[0] == command
    assert _output(command) == "1.0 0.1"


def test_two_runs_at_once_build_one_environment(target):
    script = (
        "import sys\nfrom loopspec.adapters import managed\nfrom loopspec.adapters.manifest import Manifest\n"
        "target = Manifest.model_validate_json(sys.argv[1])\n"
        "print(managed.prepare(target, progress=lambda line: print(line, file=sys.stderr))[0][0])\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, target.model_dump_json()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    ended = [process.communicate() for process in started]

    assert len({output for output, _ in ended}) == 1
    assert sum("Installing" in progress for _, progress in ended) == 1


def test_a_python_that_is_not_here_is_named(target):
    with pytest.raises(TargetUnavailable, match=r"needs python9\.9, which is not here"):
        managed.prepare(target.model_copy(update={"python": "python9.9"}))


def test_a_cache_that_cannot_be_written_is_named(target, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPSPEC_CACHE", str(tmp_path / "file"))

    with pytest.raises(TargetUnavailable, match="cache cannot be written") as caught:
        managed.prepare(target)

    assert "LOOPSPEC_CACHE" in caught.value.remedy


def test_a_target_that_is_no_python_is_not_installed(target):
    with pytest.raises(TargetUnavailable, match="not one that can be installed"):
        managed.prepare(target.model_copy(update={"language": "other"}))


def test_a_command_of_the_manifest_is_taken_as_it_is(target):
    assert managed.prepare(target.model_copy(update={"command": ("my-loop", "--adapter")}))[0] == [
        "my-loop",
        "--adapter",
    ]


def test_a_target_without_requirements_cannot_be_installed(target):
    with pytest.raises(TargetUnavailable, match="does not say what it requires"):
        managed.prepare(target.model_copy(update={"requires": ()}))


# --------------------------------------------------------------------------------------------
# The child's environment


def test_the_child_finds_the_kit():
    folder = Path(managed.environment()["PYTHONPATH"])

    assert folder == managed.KITS
    assert folder.is_dir()


def test_the_child_gets_no_proxy_and_no_credential():
    ours = {
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy",
        "http_proxy": "http://proxy",
        "OPENAI_API_KEY": "secret",
        "OPENAI_BASE_URL": "https://example.invalid",
        "LANGSMITH_API_KEY": "secret",
        "VIRTUAL_ENV": "/somewhere",
    }

    child = {**ours, **managed.environment(ours)}

    assert child.pop("NO_PROXY") == child.pop("no_proxy") == "127.0.0.1,localhost"
    assert child["PATH"] == "/bin"
    for name in set(ours) - {"PATH"}:
        assert child[name] == "", name
    assert child["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
    assert child["LANGSMITH_TRACING"] == "false"


def test_the_cache_is_this_users_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("LOOPSPEC_CACHE", raising=False)
    assert managed.cache_folder().name == "loopspec"

    monkeypatch.setenv("LOOPSPEC_CACHE", "/elsewhere")
    assert managed.cache_folder() == Path("/elsewhere")
