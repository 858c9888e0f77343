"""Runs the tasks of the recipes for Yocto and Buildroot on a release archive: the shell of the one as bitbake runs it, with
the variables of its standard classes, the make file of the other by make. Neither build system is needed, nor is it one.
usage: recipes.py ARCHIVE WORK    prints nothing if all is well"""

import fnmatch
import os
import pathlib
import re
import stat
import subprocess
import sys

PACKAGING = pathlib.Path(__file__).resolve().parent.parent / "systemd/packaging"

# How the archives' architectures are called: an override of Yocto's, and Buildroot's `ARCH` and symbol.
ARCHITECTURES = {
    "amd64": ("x86-64", "x86_64", "BR2_x86_64"),
    "arm64": ("aarch64", "aarch64", "BR2_aarch64"),
    "armhf": ("arm", "arm", "BR2_arm"),
    "riscv64": ("riscv64", "riscv64", "BR2_riscv"),
}

# bitbake.conf's values, and what the classes that the recipe inherits add to its packages.
YOCTO = {
    "PN": "coracle", "BPN": "coracle", "prefix": "/usr", "sysconfdir": "/etc", "bindir": "/usr/bin", "datadir": "/usr/share",
    "mandir": "/usr/share/man", "localstatedir": "/var", "nonarch_libdir": "/usr/lib", "libdir": "/usr/lib64",
    "systemd_system_unitdir": "/usr/lib/systemd/system",
}
PACKAGES = {
    "coracle": ["/usr/bin/*", "/etc", "/var", "/usr/share/coracle"],
    "coracle-doc": ["/usr/share/man", "/usr/share/doc"],
    "bash-completion": ["/usr/share/bash-completion"],
}


def fail(what):
    sys.exit(f"error: {what}")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fail(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")


def tree(root):
    """The files and links below a folder, each with its mode."""
    paths = (path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    return {f"/{path.relative_to(root)}": stat.S_IMODE(path.lstat().st_mode) for path in paths}


def architecture(archive):
    return ARCHITECTURES[archive.name.removesuffix(".tar.gz").rsplit("-", 1)[1]]


def recipe(work, override_of):
    """The recipe's variables and tasks, for an architecture."""
    found = list(PACKAGING.glob("yocto/meta-coracle/recipes-*/*/coracle_*.bb"))
    [path] = found
    text = path.read_text().replace("\\\n", "")
    values = YOCTO | {"PV": path.stem.removeprefix("coracle_"), "WORKDIR": str(work), "D": str(work / "image")}
    for name, override, operator, value in re.findall(r'^([A-Z_]+)(:[^ ]+)? (\+=|\?=|=) "(.*)"$', text, re.M):
        if override in ("", f":{override_of}"):
            values[name] = f"{values[name]} {value}" if operator == "+=" and name in values else value
        elif override == ":${PN}":
            values[f"{name}:coracle"] = value
    values["B"] = values["S"]
    tasks = dict(re.findall(r"^(do_\w+)\(\) \{\n(.*?)^\}$", text, re.M | re.S))
    classes = " ".join(re.findall(r"^inherit (.*)$", text, re.M)).split()
    return values, tasks, classes


def expand(text, values):
    """Puts in what bitbake puts in. Python is only what the recipe needs of it."""
    def value(match):
        name = match[1]
        if name.startswith("@qemu_target_binary"):
            return "qemu-x86_64"
        if name.startswith("@d.getVar('UNPACKDIR')"):
            return values.get("UNPACKDIR") or values["WORKDIR"]
        return values.get(name) or fail(f"the recipe uses {match[0]}, which bitbake does not know")

    while (more := re.sub(r"\$\{(@[^}]*|[A-Za-z_]+)\}", value, text)) != text:
        text = more
    return text


def packaged(path, files):
    return any(path == one or path.startswith(f"{one}/") or fnmatch.fnmatchcase(path, one) for one in files)


def yocto(archive, work, unpack):
    """Builds with the folder for sources that a release of Yocto has: none before 5.1."""
    work.mkdir()
    values, tasks, classes = recipe(work, architecture(archive)[0])
    if unpack:
        values["UNPACKDIR"] = str(work / unpack)
    folder = pathlib.Path(values.get("UNPACKDIR") or work)
    folder.mkdir(exist_ok=True)
    if expand(values["SRC_URI"], values | {"TOPDIR": "/build"}) != f"file:///build/coracle/{archive.name}":
        fail(f"the recipe does not take {archive.name}")
    run("tar", "-C", folder, "-xzf", archive)
    for task in ("do_compile", "do_install"):
        # bitbake's shells end at the first error.
        run("sh", "-euc", expand(f"cd ${{B}}\n{tasks[task]}", values))
    packages = {name: files for name, files in PACKAGES.items() if name.startswith("coracle") or name in classes}
    packages["coracle"] = packages["coracle"] + expand(values["FILES:coracle"], values).split()
    files = tree(work / "image")
    for path in files:
        if not any(packaged(path, of) for of in packages.values()):
            fail(f"Yocto: {path} is in no package (installed-vs-shipped)")
    for unit in values["SYSTEMD_SERVICE:coracle"].split():
        if f"/usr/lib/systemd/system/{unit}" not in files:
            fail(f"Yocto: there is no {unit}")
    for path in values["CONFFILES:coracle"].split():
        if expand(path, values) not in files:
            fail(f"Yocto: there is no {path}")
    if oct((work / "image/etc/coracle/manifests").stat().st_mode)[-3:] != "700":
        fail("Yocto: others may read the manifests")
    return files


MAKEFILE = r"""
SHELL = /bin/sh
qstrip = $(strip $(subst ",,$(1)))
INSTALL = install
ARCH = %(arch)s
%(symbol)s = y
HOST_DIR = %(host)s
BR2_PACKAGE_CORACLE_ARCHIVES = "%(archives)s"
TARGET_DIR = %(target)s
include %(recipe)s
print:
	@echo '$(CORACLE_SITE)/$(CORACLE_SOURCE)'
%(source)s/.stamp_target_installed:
	$(CORACLE_INSTALL_TARGET_CMDS)
	$(CORACLE_INSTALL_INIT_%(init)s)
"""


def buildroot(archive, work, init):
    """Installs for an init system, as `generic-package` does."""
    source, target, host = work / "source", work / "target", work / "host/bin"
    for folder in (work, source, target, work / "host", host):
        folder.mkdir()
    _, arch, symbol = architecture(archive)
    # This machine runs the program itself.
    emulator = host / f"qemu-{arch}"
    emulator.write_text('#!/bin/sh\nexec "$@"\n')
    emulator.chmod(0o755)
    (target / "etc").mkdir()
    (target / "etc/inittab").write_text("::sysinit:/etc/init.d/rcS\n")
    file = work / "Makefile"
    recipe = PACKAGING / "buildroot/package/coracle/coracle.mk"
    about = {"archives": archive.parent, "target": target, "recipe": recipe, "source": source, "init": init}
    file.write_text(MAKEFILE % (about | {"arch": arch, "symbol": symbol, "host": host.parent}))
    taken = subprocess.check_output(["make", "-s", "-f", file, "print"], text=True).strip()
    if taken != str(archive):
        fail(f"Buildroot takes {taken}")
    run("tar", "-C", source, "--strip-components=1", "-xzf", archive)
    for _ in range(2):
        # A package is built again whenever somebody asks for it.
        run("make", "-s", "-f", file, f"{source}/.stamp_target_installed")
    files = tree(target)
    units = [path for path in files if path.endswith(".service")]
    wanted = {"SYSTEMD": "/etc/systemd/system/multi-user.target.wants/coracle.service", "OPENRC": "/etc/init.d/coracle"}
    if init in wanted and wanted[init] not in files:
        fail(f"Buildroot, {init}: nothing starts the agent")
    if init != "SYSTEMD" and units:
        fail(f"Buildroot, {init}: {units}")
    starts = (target / "etc/inittab").read_text().count("/coracle run\n")
    if starts != (init == "SYSV"):
        fail(f"Buildroot, {init}: {starts} lines of inittab start the agent")
    return files


def main():
    archive, work = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    work.mkdir()
    older = yocto(archive, work / "yocto", None)
    if yocto(archive, work / "yocto-5.1", "sources") != older:
        fail("Yocto: another folder for sources gives other files")
    for init in ("SYSTEMD", "OPENRC", "SYSV"):
        files = buildroot(archive, work / init.lower(), init)
        same = ("/usr/bin/coracle", "/etc/coracle/config.yaml")
        if any(files.get(path) != older[path] for path in same):
            fail(f"Buildroot, {init}: {sorted(files)}")


main()
