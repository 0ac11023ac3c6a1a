"""Files of one idea, classes with a small interface: limits that a review would ask for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 450
MOST_METHODS = 40
FOLDERS = ("csrc", "coop", "benchmarks", "tests")
LONGER: set[str] = set()  # with a reason each


def files(*endings: str) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in endings
    ]


def test_no_file_is_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in files(".py", ".pyi", ".cc", ".h", ".js")
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long.keys() == LONGER, long


def test_no_class_of_python_has_too_many_methods() -> None:
    many = {}
    for path in files(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
                if len(methods) > MOST_METHODS:
                    many[node.name] = len(methods)
    assert many == {}


def num_methods(body: str) -> int:
    """Functions that the body of a class declares or defines, by their parentheses.

    What is in braces, after `=` or deleted is none.
    """
    depth = 0
    outer = []
    for character in re.sub(r"//[^\n]*", "", body):
        depth -= character == "}"
        if depth == 0:
            outer.append(";" if character == "}" else character)
        depth += character == "{"
    declarations = "".join(outer).replace("{", ";").split(";")
    kept = [text for text in declarations if not text.endswith("= delete")]
    return sum(bool(re.match(r"[^=]*[\w~)]\(", text)) for text in kept)


def test_no_class_of_cpp_has_too_many_methods() -> None:
    found: Counter[str] = Counter()
    for path in files(".h", ".cc"):
        text = path.read_text()
        for match in re.finditer(r"^(?:class|struct) [^;{}()]*?(\w+)[^;{}()]*\{\n", text, re.M):
            end = text.index("\n};", match.end() - 1)
            found[match[1]] = max(found[match[1]], num_methods(text[match.end() : end]))
    assert found["Core"] > 20  # it does count
    assert {name: count for name, count in found.items() if count > MOST_METHODS} == {}


def test_policies_are_told_apart_in_their_folder_only() -> None:
    pattern = re.compile(r"policy(?:_|\(\))? ?(?:==|!=)|PolicyOptions::Search::")
    found = [
        str(path.relative_to(ROOT))
        for path in files(".h", ".cc")
        if path.is_relative_to(ROOT / "csrc")
        and not path.is_relative_to(ROOT / "csrc/core/policy")
        and pattern.search(path.read_text())
    ]
    assert found == []
