"""The report as JUnit XML: one test case a rule, for CI systems that read nothing else.

A broken rule is a failure; what is not a verdict (not exercised, not observable, not claimed,
observed) is skipped with its reason, so that no CI counts it as a pass.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from loopspec.report.model import Report, RuleReport
from loopspec.vocabulary import Level, Verdict

_ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 has no way to write."""
    return _ILLEGAL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _case(suite: ET.Element, rule: RuleReport, name: str, failed: bool) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"{name}.{rule.level}", name=rule.id, time="0")
    if failed:
        first = rule.evidence[0].words if rule.evidence else str(rule.verdict)
        element = ET.SubElement(case, "failure", message=_clean(first), type=str(rule.verdict))
        lines = [rule.sentence, ""]
        for item in rule.evidence:
            lines += [f"{item.scenario}: {item.words}", *(f"    {entry}" for entry in item.entries)]
        if rule.minimal_scenario:
            lines += ["", "minimal scenario:", rule.minimal_scenario]
        element.text = _clean("\n".join(lines))
    elif rule.verdict is not Verdict.PASS:
        words = rule.known or "; ".join(rule.why) or rule.hidden_by or ""
        verdict = f"known failure: {words}" if rule.known else f"{rule.verdict}: {words}".rstrip(": ")
        if rule.level is Level.ADVISORY and rule.evidence:
            verdict = f"advisory, not met: {rule.evidence[0].words}"
        ET.SubElement(case, "skipped", message=_clean(verdict))


def dumps(report: Report) -> str:
    """The report as an XML text."""
    failed = {rule.id for rule in report.failed()}
    name = f"loopspec.{report.target.name}"
    passes = sum(rule.verdict is Verdict.PASS for rule in report.rules)
    suite = ET.Element(
        "testsuite", name=f"{name} {report.target.version} ({report.target.variant})",
        tests=str(len(report.rules)), failures=str(len(failed)), errors=str(len(report.errors)),
        skipped=str(len(report.rules) - len(failed) - passes), time="0",
    )  # fmt: skip
    for rule in report.rules:
        _case(suite, rule, name, rule.id in failed)
    for number, error in enumerate(report.errors, 1):
        case = ET.SubElement(suite, "testcase", classname=name, name=f"error {number}", time="0")
        ET.SubElement(case, "error", message=_clean(error))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
