"""No program is called past the table: every call in the source is read, and so is every shell script.

What runs programs for set-up, cluster, images and demo goes through `tools.program`, which refuses unknown names when
it is called. Everything else (tests, benchmarks, what runs in images and pods) is read here.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from tools import packages
from tools.cluster import binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("operator", "workers", "kernels", "tools", "e2e", "bench", "tests", "images", "docs")
HELPER = ("tools/program.py", "tools/packages.py")
READ_ONLY = ("tools/corpus/", "tools/differential/", "tools/mutation/", "e2e/tests/")
"""Held to what tests are held to."""
OURSELVES = (
    "tools/cluster/process.py: posix_spawn",
    "tools/docs/browser.py: Popen",
    "tools/docs/browser.py: run",
    "tools/docs/record.py: execvpe",
)
SPAWNING = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
    | {"create_subprocess_exec", "create_subprocess_shell"},  # of asyncio.subprocess
    "os": {"system", "popen", *(f"exec{end}" for end in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe"))}
    | {"posix_spawn", "posix_spawnp", *(f"spawn{end}" for end in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe"))},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "pty": {"spawn"},
    "shutil": {"which"},
}
CHECKED = {"program": {"run", "show", "start", "watch", "path", "check"}, "packages": {"which"}}
"""Calls that refuse an unknown program by themselves; a name that can be read is held against the table here, too."""
UNREADABLE = {
    "tests/registrar/test_sglang_directory.py: base": "the Python of the real engine",
    "tests/sglang_plugin/test_engine.py: run": "the same",
    "tests/support/sglang.py: start": "the same",
    "bench/validate.py: seconds": "the Python whose `epd` is measured",
    "tests/tools/release/test_project.py: test_the_hook_on_our_own_samples_passes": "what the hook of the file says",
    "tests/tools/release/test_install.py: test_a_program_of_the_pods_says_what_to_install": "a script of our own wheel",
    "tools/docs/browser.py: measured": "the Chromium of whoever looks at the site, which set-up does not install",
    "tools/docs/browser.py: shoot": "the same",
    "tools/docs/record.py: shown": "the command that is to be recorded",
    "kernels/epd_kernels/gate/nvidia.py: _run": "the assembler and disassembler in Triton's own package",
    "workers/epd_workers/swapool/server/supervisor.py: _run": "a pool's server, which is in its Python package",
    "images/smoke.py: pool": "the same, inside an image",
    "tools/differential/oracle.py: __init__": "the Python of the real engine's environment",
    "tests/tools/differential/test_namespace.py: __init__": "the same",
    "tests/tools/differential/test_vision.py: seen": "the same",
    "bench/epd/fleet.py: _spawn": "this Python, or the router beside it",
    "tests/reference/serving/test_router.py: routed": "the router of the Python environment",
    "tests/support/swapool/servers.py: __init__": "a pool's server, as in pods",
    "tests/reference/cache/disk.py: script": "this Python, inside `unshare` for some",
    "e2e/tests/test_chart.py: run": "Helm and kubeconform, as `access.tool` names them",
}
"""Calls whose program cannot be read from the source, each with what it is."""
BUILTINS = frozenset(
    [
        "cd",
        "echo",
        "exit",
        "set",
        "trap",
        "export",
        "test",
        "[",
        ":",
        "printf",
        "read",
        "return",
        "shift",
        "local",
        "command",
        "type",
        "source",
        ".",
        "for",
        "in",
        "do",
        "done",
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "while",
        "until",
        "case",
        "esac",
        "exec",
        "eval",
        "wait",
        "umask",
        "{",
        "}",
        "!",
        "(",
        ")",
        "true",
        "false",
    ]
)


class Call:
    """One call that starts or looks for a program.

    Attributes:
        place: File and function.
        target: Module and function that is called.
        words: What its program may be; None where that cannot be read.
    """

    def __init__(self, place: str, target: str, words: frozenset[str] | None) -> None:
        self.place = place
        self.target = target
        self.words = words


class Reader(ast.NodeVisitor):
    """Reads the calls of one module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Call] = []
        self._functions: list[str] = []
        self._values: list[dict[str, list[ast.expr]]] = []
        self._imported: dict[str, tuple[str, str]] = {}
        self._renamed: dict[str, str] = {}

    def read(self, tree: ast.Module) -> list[Call]:
        self._values.append(_assigned(tree.body))
        self.visit(tree)
        return self.calls

    @override
    def visit_Import(self, node: ast.Import) -> None:
        self._renamed |= {alias.asname: alias.name for alias in node.names if alias.asname}

    @override
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported[alias.asname or alias.name] = (node.module or "", alias.name)

    @override
    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    @override
    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self._values.append(_assigned(node.body))
        self.generic_visit(node)
        self._values.pop()
        self._functions.pop()

    @override
    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if (target := self._target(node.func)) is not None:
            place = f"{self.name}: {self._functions[-1] if self._functions else ''}"
            named = [keyword.value for keyword in node.keywords if keyword.arg == "args"]
            first = [*node.args, *named][:1]
            words = self._words(first[0]) if first else None
            if target.endswith(("shell", "system", "popen", "output")) and words is not None:
                words = frozenset(word.split()[0] for word in words)
            self.calls.append(Call(place, target, words))
            if (script := _script(first[0]) if first else None) is not None:
                self.calls.append(Call(place, target, frozenset(commands(script))))

    def _target(self, function: ast.expr) -> str | None:
        module, name = "", ""
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            module, name = function.value.id, function.attr
            module = self._renamed.get(module, self._imported.get(module, ("", module))[1])
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Attribute):
            module, name = function.value.attr, function.attr
        elif isinstance(function, ast.Name):
            module, name = self._imported.get(function.id, ("", function.id))
        module = module.rpartition(".")[2]
        return f"{module}.{name}" if name in (SPAWNING | CHECKED).get(module, ()) else None

    def _words(self, node: ast.expr) -> frozenset[str] | None:
        """Read what a program, or a command line, may begin with."""
        match node:
            case ast.Constant(value=str(text)):
                return frozenset({text})
            case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
                return self._words(first)
            case ast.IfExp(body=body, orelse=orelse):
                return self._both([body, orelse])
            case ast.BoolOp(values=values):
                return self._both(values)
            case ast.Attribute(value=ast.Name(id="sys"), attr="executable"):
                return frozenset({"python"})
            case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name):
                return self._named(name)
            case ast.Call():
                return self._result(node)
            case _:
                inner = _inner(node)
                return None if inner is None else self._words(inner)

    def _named(self, name: str) -> frozenset[str] | None:
        for values in reversed(self._values):
            if name in values:
                return self._both(values[name])
        return None

    def _result(self, node: ast.Call) -> frozenset[str] | None:
        match node.func:
            case ast.Attribute(value=ast.Name(id="access"), attr="kubectl") | ast.Attribute(attr="kubectl"):
                return frozenset({"kubectl"})
            case (
                ast.Attribute(value=ast.Name(id="access"), attr="tool")
                | ast.Attribute(attr="with_name" | "path" | "which")
            ):
                return self._words(node.args[0])
            case ast.Name(id="str" | "Path" | "cast"):
                return self._words(node.args[-1])
            case _:
                return None

    def _both(self, nodes: list[ast.expr]) -> frozenset[str] | None:
        read = [self._words(node) for node in nodes]
        return None if None in read else frozenset().union(*(words for words in read if words is not None))


def _script(node: ast.expr) -> str | None:
    """Return the script of a command line that starts a shell with one: `sh -c SCRIPT`."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            words = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            for shell, flag, script in zip(words, words[1:], words[2:], strict=False):
                if shell in {"sh", "bash"} and flag == "-c" and isinstance(script, str):
                    return script
            return None
        case _:
            return None


def _inner(node: ast.expr) -> ast.expr | None:
    """Return the part of an expression that a command line begins with, or a path ends in."""
    match node:
        case ast.Starred(value=part) | ast.BinOp(left=part, op=ast.Add()) | ast.BinOp(op=ast.Div(), right=part):
            return part
        case ast.ListComp(generators=[generator]):
            return generator.iter
        case _:
            return None


def _assigned(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Collect what the names of a function or module are bound to, nested functions and classes apart."""
    actual: dict[str, list[ast.expr]] = {}
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name | ast.Attribute):
                        name = target.id if isinstance(target, ast.Name) else target.attr
                        actual.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                actual.setdefault(name, []).append(value)
            case _:
                pass
        waiting += ast.iter_child_nodes(node)
    return actual


def calls_of(name: str, text: str) -> list[Call]:
    return Reader(name).read(ast.parse(text))


def sources() -> Iterator[tuple[str, str]]:
    files = [ROOT / "conftest.py", *(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))]
    for file in files:
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return [call for name, text in sources() for call in calls_of(name, text)]


STAND_INS = {
    "a) R 1 (b": "a link to `sleep` with a name that is hard to read in /proc",
    "here": "a command that the test itself has written",
    "/opt/pypy": "an interpreter, which is never run",
    "/usr/bin/pypy": "the same, refused",
}
"""What tests make to run it."""


def unknown(words: frozenset[str]) -> set[str]:
    return {word for word in words if Path(word).name not in packages.names()}


def test_every_program_that_the_source_names_is_in_the_table(calls: list[Call]) -> None:
    actual = {(call.place, word) for call in calls for word in unknown(call.words or frozenset())}
    assert {word for _, word in actual} >= STAND_INS.keys()
    assert not {each for each in actual if each[1] not in STAND_INS}, (
        "add them to tools/packages.py, with the Debian package that brings them"
    )


def test_set_up_cluster_images_and_demo_run_programs_by_the_helper(calls: list[Call]) -> None:
    past = {
        f"{call.place.partition(':')[0]}: {call.target.partition('.')[2]}"
        for call in calls
        if call.place.startswith(("tools/", "e2e/"))
        and not call.place.startswith((*READ_ONLY, *HELPER))
        and call.target.partition(".")[0] in SPAWNING
    }
    assert past <= set(OURSELVES), "call tools.program instead"


def test_what_cannot_be_read_is_listed_with_what_it_is(calls: list[Call]) -> None:
    actual = {
        call.place
        for call in calls
        if call.words is None
        and call.target.partition(".")[0] in SPAWNING
        and not call.place.startswith((*HELPER, "tools/cluster/process.py:"))
    }
    assert actual == UNREADABLE.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import subprocess\nsubprocess.run(['nmap', '-p'])", {"nmap"}),
        ("from subprocess import check_output as ask\nask(args=('nmap',))", {"nmap"}),
        ("import os\nos.system('nmap -p 1')", {"nmap"}),
        ("import os\nos.execvp('nmap', ['nmap'])", {"nmap"}),
        ("import asyncio\nasync def f():\n  await asyncio.create_subprocess_exec('nmap', '-p')", {"nmap"}),
        ("import shutil, subprocess\nX = shutil.which('nmap') or 'zmap'\nsubprocess.run([X])", {"nmap", "zmap"}),
        ("import subprocess\ndef f():\n  c = ['/usr/bin/nmap']\n  subprocess.Popen([*c, 'x'])", {"/usr/bin/nmap"}),
        ("from tools import program\nprogram.run(['nmap'])", {"nmap"}),
        ("import os\nos.posix_spawn('/usr/bin/nmap', [], {})", {"/usr/bin/nmap"}),
        ("import subprocess as sp\nsp.run(['nmap'])", {"nmap"}),
        ("import os as system\nsystem.system('nmap -p 1')", {"nmap"}),
        ("import asyncio\nasync def f():\n  await asyncio.subprocess.create_subprocess_exec('nmap')", {"nmap"}),
        ("from asyncio import subprocess\nasync def f():\n  await subprocess.create_subprocess_exec('nmap')", {"nmap"}),
    ],
)  # fmt: skip
def test_the_reader_sees_a_program_in_each_way_to_call_it(text: str, words: set[str]) -> None:
    read = [call.words for call in calls_of("x.py", text)]
    assert all(call is not None for call in read)
    assert set().union(*(call or set() for call in read)) == words
    assert unknown(frozenset(words)) == words


def test_the_reader_sees_the_script_of_a_shell() -> None:
    text = "from tools import program\nprogram.run(['sh', '-c', 'cd x && nmap -p 1'])"
    assert [call.words for call in calls_of("x.py", text)] == [frozenset({"sh"}), frozenset({"nmap"})]


def test_the_reader_says_when_it_cannot_read() -> None:
    text = "import subprocess\ndef f(command):\n  subprocess.run(command)\n  subprocess.run([f'{command}map'])"
    assert [call.words for call in calls_of("x.py", text)] == [None, None]


def commands(script: str) -> set[str]:
    """Read the names at the places of a shell script where a command stands."""
    script = re.sub(r"(^|\s)#.*", r"\1", script.replace("\\\n", " "), flags=re.MULTILINE)
    inner = {name for text in re.findall(r"\$\(([^()]*)\)", script) for name in commands(text)}
    defined = set(re.findall(r"^(\w+)\(\)", script, flags=re.MULTILINE))
    actual: set[str] = set()
    for line in re.sub(r"\$\([^()]*\)", "X", script).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        starts = True
        for word in words:
            if set(word) <= set("();&|") or word in {"then", "do", "else", "!", "{", "if", "while"}:
                starts = True
            elif starts and not re.match(r"\w+=", word):
                actual.add(word)
                starts = False
    return (actual | inner) - BUILTINS - defined


def recipes(makefile: str) -> str:
    """Return the commands of a Makefile, its variables put in as far as they name programs."""
    lines = "\n".join(line[1:].lstrip("@-") for line in makefile.splitlines() if line.startswith("\t"))
    for pattern, text in ((r"\$\(PY\)", "python"), (r"\$\(VENV\)/bin/", ""), (r"\$\([A-Z]+[^()]*\)", "X")):
        lines = re.sub(pattern, text, lines)
    return lines.replace("$$", "$")


def test_the_makefile_names_programs_of_the_table() -> None:
    actual = commands(recipes((ROOT / "Makefile").read_text(encoding="utf-8")))
    assert {"python3", "python", "pytest", "rm"} <= actual
    assert not unknown(frozenset(actual))


SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in (".ci", ".github", "requirements", *(folder for folder in FOLDERS if folder != "images"))
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {"", ".sh"} and path.is_file() and path.read_bytes().startswith(b"#!/")
)
"""Those of `images` run inside of an image: its base brings what they call."""


def test_the_scripts_are_these() -> None:
    assert {".ci/run", "requirements/lock.sh"} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_name_programs_of_the_table(name: str) -> None:
    actual = commands((ROOT / name).read_text(encoding="utf-8"))
    assert actual
    assert not unknown(frozenset(actual))


def test_the_reader_of_scripts_sees_commands() -> None:
    script = "set -e\nA=1 nmap -p 'x; y' | jq . && if ! curl x; then dig; fi\nfoo() { :; }\nfoo $(whois a)  # nc\n"
    assert commands(script) == {"nmap", "jq", "curl", "dig", "whois"}


def test_programs_built_from_go_are_those_of_the_modules() -> None:
    assert set(packages.GO_PROGRAMS) == {name for module in binaries.MODULES for name in module.programs}


def test_images_install_the_libraries_of_the_table() -> None:
    """Where the base is not ours, the script that installs the dependencies brings them."""
    script = (ROOT / "images" / "dependencies.sh").read_text(encoding="utf-8")
    installed = re.search(r"apt-get -qq install --no-install-recommends ([\w -]+) >", script)
    assert installed is not None
    assert tuple(sorted(installed[1].split())) == packages.packages(packages.LIBRARIES)
