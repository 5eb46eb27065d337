"""From the words on a command line to a target that can be run.

A target is named in one of four ways:

``reference``
    the built-in reference loop, with a profile's claims or chosen ones;
``NAME`` or ``NAME@VERSION``
    a managed target of the catalogue, installed and cached in an environment of its own;
``path/to/manifest.toml``
    your own loop in a child process, described by its manifest;
``module:attribute``
    your own adapter in this process: an adapter object, class or function that makes one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from loopspec.adapters.manifest import Manifest, ManifestError, load_manifest
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.vocabulary import CLAIMS, PROFILES

Progress = Callable[[str], None]


class TargetError(Exception):
    """A target cannot be run; the message says why and what to do."""


def claims_of(profile: str, changes: Iterable[str]) -> dict[str, str]:
    """A profile's claims with ``name=value`` changes; an empty value takes a claim away.

    Raises :class:`TargetError` naming what there is.
    """
    if profile not in PROFILES:
        raise TargetError(f"there is no profile {profile!r}; choose one of {', '.join(PROFILES)}")
    claims = dict(PROFILES[profile])
    for change in changes:
        name, _, value = change.partition("=")
        if name not in CLAIMS:
            raise TargetError(f"there is no claim {name!r}; choose one of {', '.join(CLAIMS)}")
        if value and value not in CLAIMS[name]:
            values = ", ".join(CLAIMS[name])
            raise TargetError(f"claim {name} has no value {value!r}; choose one of {values}")
        claims.pop(name, None)
        if value:
            claims[name] = value
    return claims


def _own_process(path: Path) -> Any:
    from loopspec.adapters.process import ProcessAdapter

    manifest = load_manifest(path)
    if manifest.command:
        command = list(manifest.command)
    elif manifest.adapter:
        command = [manifest.python or sys.executable, str(path.parent.resolve() / manifest.adapter)]
    else:
        raise TargetError(f"{path}: say how to start the adapter: command = [...] or adapter = '...'")
    return ProcessAdapter(manifest, command, cwd=path.parent)


def _own_object(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise TargetError(f"{name}: cannot be imported: {error}; give MODULE:ATTRIBUTE") from error
    finally:
        sys.path.pop(0)
    if callable(made):
        made = made()
    if not isinstance(getattr(made, "manifest", None), Manifest):
        raise TargetError(f"{name}: has no manifest; an adapter has a Manifest and async open()")
    return made


def resolve(
    name: str,
    *,
    profile: str = "rejecting",
    changes: Iterable[str] = (),
    progress: Progress = lambda _: None,
) -> Any:
    """The adapter of a target.

    Parameters
    ----------
    name: as in the module's text.
    profile: whose claims the reference loop runs with (other targets have their own).
    changes: ``name=value`` claims that replace those of the profile or of the manifest.
    progress: told what long work is going on.

    Raises :class:`TargetError`.
    """
    if name == "reference":
        return ReferenceAdapter(claims_of(profile, changes))
    try:
        if name.endswith(".toml"):
            return _own_process(Path(name))
        if ":" in name:
            return _own_object(name)
        return _managed(name, progress)
    except ManifestError as error:
        raise TargetError(str(error)) from error


def _managed(name: str, progress: Progress) -> Any:
    from loopspec.adapters import managed
    from loopspec.adapters.process import ProcessAdapter

    bare, _, version = name.partition("@")
    known = {manifest.name: manifest for manifest in managed.available()}
    if bare not in known:
        raise TargetError(
            f"there is no target {bare!r} in the catalogue; it has: reference, "
            f"{', '.join(sorted(known))}. For a loop of your own give a manifest.toml or MODULE:ATTRIBUTE"
        )
    try:
        manifest = managed.load_target(bare, version or None)
        command, env = managed.prepare(manifest, version=version or None, progress=progress)
    except managed.TargetUnavailable as error:
        raise TargetError(str(error)) from error
    return ProcessAdapter(manifest, command, env=env)


def with_claims(manifest: Manifest, changes: Mapping[str, str]) -> Manifest:
    """A manifest whose claims are changed for one run, for trying a claim out."""
    from loopspec.adapters.manifest import Claim

    kept = [claim for claim in manifest.claims if claim.name not in changes]
    added = [
        Claim(name=name, value=value, source="the command line") for name, value in changes.items() if value
    ]
    return manifest.model_copy(update={"claims": (*kept, *added)})
