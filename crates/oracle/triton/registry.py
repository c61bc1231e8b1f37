"""The registry of oracle kernels, and what a launch of each needs."""
import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon._runtime import GluonASTSource

KERNELS = {}
SWIZZLES = (0, 32, 64, 128)


def kernel(name, fn, sig, consts, arch, reference, grid, scalars=None, shapes=None, options=None, **about):
    """Registers a kernel.

    `grid` counts programs; `scalars` are the run-time arguments that are no tensors, `shapes` the tensors, row-major.
    `about` is what the reference needs besides: it goes into the description as it is."""
    assert name not in KERNELS, name
    KERNELS[name] = dict(fn=fn, sig=sig, consts=consts, arch=arch, reference=reference, grid=grid,
                         scalars=scalars or {}, shapes=shapes or {}, options=options or {}, about=about)


def element(ty):
    return re.match(r"(?:\*|tensordesc<)(\w+)", ty).group(1)


def parameters(k, args, sig, meta, programs):
    """The arguments in the order of the entry's parameters, with those that the compiler adds."""
    maps = iter(meta.tensordesc_meta or [])
    for a in args:
        ty = sig[a]
        if ty == "constexpr":
            continue
        if ty.startswith("tensordesc"):
            m, shape = next(maps), list(k["shapes"][a])
            yield dict(arg=a, kind="map", element=element(ty), shape=shape, box=m["block_size"],
                       swizzle=SWIZZLES[m["swizzle"]], padded_fp4=m["fp4_padded"])
            strides = [1]
            for extent in reversed(shape[1:]):
                strides.insert(0, strides[0] * extent)
            yield from (dict(arg=f"{a}.shape[{i}]", kind="i32", value=v) for i, v in enumerate(shape))
            yield from (dict(arg=f"{a}.stride[{i}]", kind="i64", value=v) for i, v in enumerate(strides))
        elif ty[0] == "*":
            yield dict(arg=a, kind="pointer", element=element(ty), shape=list(k["shapes"][a]))
        else:
            yield dict(arg=a, kind=ty, value=k["scalars"][a])
    ctas = programs * meta.num_ctas
    yield dict(arg="global_scratch", kind="scratch", bytes=ctas * meta.global_scratch_size)
    yield dict(arg="profile_scratch", kind="scratch", bytes=ctas * meta.profile_scratch_size)


def constant(value):
    """A constant as JSON has it; types by their names."""
    return value if isinstance(value, (bool, int, str, list)) else str(value)


def compile_one(name, out):
    """Writes NAME.ptx and NAME.json."""
    k = KERNELS[name]
    fn = k["fn"]
    args = fn.arg_names
    sig = {a: k["sig"].get(a, "constexpr") for a in args}
    aligned = [i for i, a in enumerate(args) if sig[a] != "constexpr" and not sig[a].startswith("tensordesc")]
    source = GluonASTSource if isinstance(fn, gluon._runtime.GluonJITFunction) else ASTSource
    done = triton.compile(
        source(fn=fn, signature=sig, constexprs=k["consts"],
               attrs={(i,): [["tt.divisibility", 16]] for i in aligned}),
        target=GPUTarget("cuda", k["arch"], 32), options=k["options"])
    ptx, meta = done.asm["ptx"], done.metadata
    grid = list(k["grid"]) + [1] * (3 - len(k["grid"]))
    params = list(parameters(k, args, sig, meta, grid[0] * grid[1] * grid[2]))
    head = re.search(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)", ptx, re.S)
    declared = head.group(2).count(".param")
    if declared != len(params):
        raise RuntimeError(f"{name}: {declared} parameters in PTX, {len(params)} expected")
    described = dict(
        name=name, compiler=f"triton {triton.__version__}", target=re.search(r"\.target\s+(\w+)", ptx).group(1),
        entry=head.group(1), block=[32 * meta.num_warps, 1, 1], cluster=[meta.num_ctas, 1, 1],
        grid=[grid[0] * meta.num_ctas, *grid[1:]], shared_bytes=meta.shared, reference=k["reference"],
        about=k["about"], constants={a: constant(v) for a, v in k["consts"].items()})
    rows = ",\n  ".join(json.dumps(p) for p in params)
    with open(f"{out}/{name}.json", "w") as f:
        f.writelines(["{\n", *(f' "{key}": {json.dumps(value)},\n' for key, value in described.items()),
                      f' "params": [\n  {rows}\n ]\n}}\n'])
    with open(f"{out}/{name}.ptx", "w") as f:
        f.write(ptx)
    return ptx
