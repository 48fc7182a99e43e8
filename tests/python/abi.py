"""Compares worker/python/zenps/_abi.py with what make-abi writes, and with the compiler. Arguments: folder of the
package, folder of the headers, scratch folder; environment: CC. TAP.

A C program prints the values of constants, and the sizes and offsets of structures and their members.
"""

import ctypes
import difflib
import importlib.util
import os
import shlex
import subprocess
import sys

package, headers, scratch = sys.argv[1:4]
spec = importlib.util.spec_from_file_location("_abi", os.path.join(package, "_abi.py"))
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)

failed = 0
n_tests = 0


def test(name, problems):
    global failed, n_tests
    n_tests += 1
    failed += bool(problems)
    print(("not ok" if problems else "ok") + f" {n_tests} - {name}")
    for problem in problems:
        print("#   " + problem)


with open(os.path.join(package, "_abi.py"), encoding="utf-8") as file:
    ours = file.read().splitlines()
script = os.path.join(os.path.dirname(package), "make-abi")
made = subprocess.run([script, "-"], stdout=subprocess.PIPE, universal_newlines=True, check=False)
problems = list(difflib.unified_diff(ours, made.stdout.splitlines(), "_abi.py", "make-abi", lineterm="", n=0))
if made.returncode:
    problems = ["make-abi does not understand the headers"]
elif problems:
    problems.append("run worker/python/make-abi, and commit what it writes")
test("_abi.py is what make-abi makes of the headers", problems)

expected = {}
lines = ['#include <stdio.h>', "#include <stddef.h>", "#include <zenps/elastic.h>", "#include <zenps/sparsify.h>", "int main(void)", "{"]


def ask(what, value):
    expected[what] = value
    lines.append(f'  printf("%s %lld\\n", "{what}", (long long)({what.replace("#", ",")}));')


for number, part in zip(abi.VERSION, ("MAJOR", "MINOR", "PATCH")):
    ask(f"ZENPS_VERSION_{part}", number)
for kind, prefix in abi.ENUMS.values():
    for constant in kind:
        ask(prefix + constant.name, int(constant))
for tag, kind in abi.STRUCTS.items():
    ask(f"sizeof(struct {tag})", ctypes.sizeof(kind))
    for field in kind._fields_:
        member = getattr(kind, field[0])
        ask(f"offsetof(struct {tag}#{field[0]})", member.offset)
        ask(f"sizeof(((struct {tag} *)0)->{field[0]})", member.size)
lines += ["  return 0;", "}", ""]
source, program = os.path.join(scratch, "abi.c"), os.path.join(scratch, "abi")
with open(source, "w", encoding="utf-8") as file:
    file.write("\n".join(lines))
compiler = shlex.split(os.environ.get("CC", "cc"))
subprocess.run([*compiler, "-I", os.path.dirname(os.path.abspath(headers)), "-o", program, source], check=True)
output = subprocess.run([program], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
found = {what: int(value) for what, _, value in (line.rpartition(" ") for line in output.splitlines())}
test(
    f"{len(expected)} constants, sizes and offsets are those of the compiler",
    [f"{what} is {found.get(what)}; _abi.py has {value}" for what, value in expected.items() if found.get(what) != value],
)
print(f"1..{n_tests}")
sys.exit(bool(failed))
