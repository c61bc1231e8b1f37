"""``import deep_gemm`` that finds ``oxigemm.deep_gemm``."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

_NAME = "deep_gemm"
_TARGET = "oxigemm.deep_gemm"


class _Finder:
    """Finds ``deep_gemm`` and what is in it as the module of the same name here."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _NAME and not fullname.startswith(_NAME + "."):
            return None
        try:
            module = importlib.import_module(_TARGET + fullname[len(_NAME) :])
        except ModuleNotFoundError:
            return None
        spec = ModuleSpec(fullname, self, is_package=hasattr(module, "__path__"))
        spec.loader_state = module
        return spec

    def create_module(self, spec):
        # The module keeps the specification that it has under its own name.
        spec.loader_state.__dict__.setdefault("__spec_here__", spec.loader_state.__spec__)
        return spec.loader_state

    def exec_module(self, module):
        module.__spec__ = module.__dict__.pop("__spec_here__", module.__spec__)


def install_as_deep_gemm() -> None:
    """From now on ``import deep_gemm``, and its modules, are ``oxigemm.deep_gemm``.

    A ``deep_gemm`` that was imported before is replaced for imports that follow; what others already hold of it stays.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in [name for name in sys.modules if name == _NAME or name.startswith(_NAME + ".")]:
        del sys.modules[name]
    importlib.import_module(_NAME)
