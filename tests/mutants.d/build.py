"""Compiles the pure rooms once, with all their mutants, and their tests, in a copy in `target/mutants`.

The copy has only the pure rooms, which compile in a minute, and the tests that need no others.
"""

import json
import os
import re
import subprocess

import rewrite

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
# The pure rooms, which have the mutants.
PURE = ("src/plan/", "src/spec/", "src/types/")
TREE = os.path.join(TOP, "target", "mutants", "tree")
# The target directory is shared for compiled dependencies. The copy is built once, so that incremental builds are useless.
ENVIRONMENT = os.environ | {"CARGO_TARGET_DIR": os.path.join(TOP, "target"), "CARGO_INCREMENTAL": "0"}
TESTS = ["golden_spec", "spec_properties", "behaviour", "simulation"]
# The copy's own manifest.
MANIFEST = """
[package]
name = "coracle"
version = "0.3.0"
edition = "2024"
autobins = false
autotests = false

[lib]
path = "tests/planner/rooms/lib.rs"
doctest = false
"""


def listed():
    """All mutants, as cargo-mutants finds them."""
    command = ["cargo", "mutants", "--list", "--json"]
    mutants = json.loads(subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE).stdout)
    for n, mutant in enumerate(mutants):
        mutant["n"] = n
        del mutant["diff"]
    return mutants


def files(*places):
    """The files of the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", *places]
    names = subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [name for name in names if os.path.isfile(os.path.join(TOP, name))]


def copy():
    """Puts the files without mutants into the copy."""
    for name in files():
        if not name.startswith(PURE) and name != "Cargo.toml":
            with open(os.path.join(TOP, name), "rb") as file:
                write(name, file.read())


def alone():
    """Makes the copy a crate of the rooms and their tests."""
    whole, rooms = (
        open(os.path.join(TOP, place, "Cargo.toml")).read() for place in ("", "tests/planner/rooms")
    )
    section = r"^\[(?:%s)[^\n]*\n.*?(?=^\[|\Z)"
    parts = [MANIFEST]
    parts += [f'[[test]]\nname = "{test}"\n' for test in TESTS if test != "simulation"]
    parts += re.findall(section % "dependencies", rooms, re.M | re.S)
    parts += re.findall(section % "dev-dependencies|workspace|profile", whole, re.M | re.S)
    write("Cargo.toml", "\n".join(parts).encode())


def write(name, content):
    """Writes a file of the copy. An unchanged file keeps its date."""
    path = os.path.join(TREE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path) or open(path, "rb").read() != content:
        with open(path, "wb") as file:
            file.write(content)


def rewritten(mutants):
    """Returns the text of each file with these mutants, and the mutants that have a place in it."""
    texts, placed = {}, []
    for name in files(*PURE):
        own = [m for m in mutants if m["file"] == name]
        file = rewrite.File(open(os.path.join(TOP, name)).read(), own)
        texts[name] = file.render()
        placed += [mutant for at in file.at.values() for mutant in at]
    size = 1 + max(m["n"] for m in mutants)
    texts["src/spec/mod.rs"] += rewrite.SWITCH % (size, size)
    return texts, placed


def cargo(*arguments):
    """Runs cargo; returns its messages, and whether it succeeded."""
    command = ["cargo", *arguments, "--message-format=json"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    done = subprocess.run(command, cwd=TREE, env=ENVIRONMENT, **quiet)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return said, done.returncode == 0


def to_blame(message, texts):
    """The mutants that cause a compiler error."""
    # If the error is elsewhere, the mutant that causes it is near its other spans.
    for span in sorted(message["spans"], key=lambda s: not s["is_primary"]):
        text = texts.get("src/" + span["file_name"].split("src/")[-1])
        if text and (found := rewrite.blamed(text, span["byte_start"], span["byte_end"])):
            return found
    raise SystemExit("no mutant is to blame:\n" + message["rendered"])


def errors(said):
    messages = [line["message"] for line in said if line["reason"] == "compiler-message"]
    return [m for m in messages if m["level"] == "error" and m["spans"]]


def without_errors(mutants):
    """Leaves out mutants until the others compile; returns those."""
    while True:
        texts, mutants = rewritten(mutants)
        for name, text in texts.items():
            write(name, text.encode())
        said, fine = cargo("check", "--package", "coracle-rooms")
        if fine:
            return mutants
        wrong = set().union(*(to_blame(error, texts) for error in errors(said)))
        mutants = [m for m in mutants if m["n"] not in wrong]


def build(mutants):
    """Compiles the copy. Returns the mutants that compile, and test → program."""
    copy()
    alone()
    mutants = without_errors(mutants)
    tests = [word for test in TESTS for word in ("--test", test)]
    said, fine = cargo("test", "--no-run", "--lib", *tests)
    if not fine:
        raise SystemExit("".join(error["rendered"] for error in errors(said)))
    built = [m for m in said if m["reason"] == "compiler-artifact" and m["executable"]]
    return mutants, {m["target"]["name"]: m["executable"] for m in built}
