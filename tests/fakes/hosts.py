# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for installed packages: a folder for PYTHONPATH in which verl, Ray and others have the versions that a test needs."""

from collections import defaultdict

RAY = {
    "ray.actor": ["ActorMethod._remote"],
    "ray.util.tracing.tracing_helper": ["_is_tracing_enabled", "_get_opentelemetry"],
}


class Site:
    """A folder of packages that goes in front of the installed ones."""

    def __init__(self, folder):
        self.folder = folder
        self.symbols = defaultdict(list)

    def install(self, name, version, entry_points="", modules=None):
        """Add a distribution; ``modules`` names what its modules hold, as ``{module: [function or Class.method]}``."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if entry_points:
            (info / "entry_points.txt").write_text(entry_points)
        for module, symbols in (modules or {}).items():
            self.symbols[module] += symbols
        self._write()
        return self

    def write(self, module, source):
        """Write one module as it is."""
        path = self.folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return self

    def lose(self, module, symbol):
        """Take one symbol away."""
        self.symbols[module].remove(symbol)
        self._write()
        return self

    def _write(self):
        for module, symbols in self.symbols.items():
            *packages, _ = module.split(".")
            for depth in range(1, len(packages) + 1):
                package = self.folder.joinpath(*packages[:depth])
                package.mkdir(parents=True, exist_ok=True)
                (package / "__init__.py").touch()
            names = defaultdict(list)
            for symbol in symbols:
                owner, _, method = symbol.partition(".")
                names[owner].append(method)
            parts = []
            for owner, methods in names.items():
                if methods == [""]:
                    parts.append(f"def {owner}(*args, **kwargs): ...\n")
                else:
                    body = "".join(f"    def {method}(self, *args, **kwargs): ...\n" for method in methods)
                    parts.append(f"class {owner}:\n{body}")
            source = "\n".join(parts) or "\n"
            as_package = self.folder.joinpath(*module.split("."))
            if as_package.is_dir() or "." not in module:
                as_package.mkdir(exist_ok=True)
                (as_package / "__init__.py").write_text(source)
            else:
                as_package.with_suffix(".py").write_text(source)


def good(folder, hooks, verl="0.9.1", ray="2.60.0"):
    """An environment in which everything is as it should be: verl and Ray with all that the hooks need."""
    modules = defaultdict(list)
    for hook in hooks:
        modules[hook.module].append(hook.symbol)
    own = {module: symbols for module, symbols in modules.items() if module.startswith("verl.")}
    others = {module: symbols for module, symbols in modules.items() if not module.startswith("verl.")}
    site = Site(folder)
    site.install("verl", verl, modules=own)
    site.install("ray", ray, modules=RAY)
    return site.install("others", "1", modules=others)
