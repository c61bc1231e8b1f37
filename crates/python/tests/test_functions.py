"""The table of GEMM functions, and all that comes from it: facade, torch's operators, stubs, the extension's fields."""

import importlib
import inspect
import pathlib
import sys

import numpy as np
import pytest

import oxigemm
from oxigemm import _gemm_operators, _ops, _oxigemm

from arrays import BF16, E4M3, normals, per_block, per_token

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "codegen"))
import functions  # noqa: E402
import generate  # noqa: E402

PACKAGE = pathlib.Path(oxigemm.__file__).parent
ROWS = [(module, function) for module in functions.MODULES for function in module.functions]
OPERATORS = {**_gemm_operators.OPERATORS, **_ops.OPERATORS}


def module_of(row):
    return importlib.import_module("oxigemm." + row.path[: -len(".py")].replace("/", "."))


def schema_of(name):
    """Types and names of an operator's arguments."""
    return [part.rsplit(" ", 1) for part in OPERATORS[name][0].split(", ")]


def test_generated_files_are_up_to_date():
    for path, text in generate.files(PACKAGE).items():
        found = (PACKAGE / path).read_text(encoding="utf-8")
        assert found == text, f"{path} differs from the table: run python crates/python/codegen/generate.py"


@pytest.mark.parametrize("module, row", ROWS, ids=lambda value: getattr(value, "name", ""))
def test_functions_have_the_names_arguments_and_text_of_the_table(module, row):
    function = getattr(module_of(module), row.name)
    found = [
        (parameter.name, parameter.annotation, None if parameter.default is parameter.empty else parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]
    default = lambda text: None if text is None else eval(text)  # noqa: E731
    assert found == [(each.name, each.annotation, default(each.default)) for each in row.arguments]
    assert inspect.getdoc(function) == row.doc.rstrip("\n")
    for alias in row.aliases:
        assert getattr(module_of(module), alias) is function


@pytest.mark.parametrize("module", functions.MODULES, ids=lambda module: module.path)
def test_modules_list_the_functions_of_the_table(module):
    listed = [name for row in module.functions if row.is_listed for name in (row.name, *row.aliases)]
    assert module_of(module).__all__ == sorted(listed)
    defined = inspect.getmembers(module_of(module), inspect.isfunction)
    assert {name for name, _ in defined} == {name for row in module.functions for name in (row.name, *row.aliases)}


def test_fields_of_structured_arguments_are_those_of_the_extension():
    assert _oxigemm.FIELDS == {name: tuple(each.name for each in row) for name, row in functions.FIELDS.items()}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_take_the_arguments_of_their_schema(name):
    called = OPERATORS[name][1]
    if inspect.isfunction(called):
        found = list(inspect.signature(called).parameters)
    else:
        found = [part.strip() for part in called.__text_signature__.strip("()").split(",")]
    # The extension has names of its own for a few; those that it is called with are not named.
    assert len(found) == len(schema_of(name))
    if inspect.isfunction(called):
        assert found == [argument for _, argument in schema_of(name)]


def test_operators_take_all_that_their_functions_pass():
    for _, row in ROWS:
        accepted = {each.name: each.schema for each in generate.operator_arguments(generate.firsts()[row.operator])}
        assert all(accepted.get(each.name) == each.schema for each in generate.operator_arguments(row)), row.name


def test_every_operator_writes_something():
    for name in OPERATORS:
        assert any("!" in kind for kind, _ in schema_of(name)), name


@pytest.fixture
def groups_of_any_length():
    """Groups that begin at any row."""
    oxigemm.deep_gemm.set_mk_alignment_for_contiguous_layout(1)
    yield
    oxigemm.deep_gemm.set_mk_alignment_for_contiguous_layout(128)


def operands(row, m=8, n=128, k=128, groups=2):
    """Operands of a function and what else it needs."""
    dtype = {"fp8": E4M3, "bfloat16": BF16, "float16": np.float16, "float32": np.float32}[row.dtype]
    if row.grouping == "k_grouped_contiguous":
        # Rows of 16 bytes at least.
        m = 2 * m if (row.dtype, row.layout) == ("fp8", "tn") else m
        d = np.zeros((groups, m, n), np.float32)
        numbers = {"ks_cpu": [k] * groups, "grouped_layout": np.full(groups, k, np.int32)}
        if row.dtype == "fp8":
            a, b = per_token(groups * m, k), per_token(groups * n, k, seed=1)
            if "fp4" in row.name:
                codes = [normals(groups * rows, k // 2).view(np.uint8)[:, : k // 2] for rows in (m, n)]
                scales = [np.ones((rows, groups * k // 32), np.float32) for rows in (m, n)]
                a, b = ((np.ascontiguousarray(x).ravel(), sf) for x, sf in zip(codes, scales))
                return {"a": a, "b": b, "d": d, **numbers}
            if row.layout == "tn":
                flat = [np.ascontiguousarray(x[0].reshape(groups, -1, k).swapaxes(1, 2)) for x in (a, b)]
                scales = [x[1].reshape(groups, -1) for x in (a, b)]
                a, b = ((x.reshape(groups * k, -1), sf) for x, sf in zip(flat, scales))
                return {"a": a, "b": b, "d": d, **numbers}
            scales = [x[1].reshape(groups, -1).T.copy() for x in (a, b)]
            return {"a": (a[0].ravel(), scales[0]), "b": (b[0].ravel(), scales[1]), "d": d, **numbers}
        a, b = (normals(groups * k, size, seed=size).astype(dtype) for size in (m, n))
        return {"a": a, "b": b, "d": d, **numbers}
    more = {}
    a_groups, b_groups = [], [groups] * (row.grouping != "dense")
    if row.grouping == "m_grouped_masked":
        a_groups, more = [groups], {"masked_m": np.array([3, 8], np.int32), "expected_m": 4}
    elif row.grouping != "dense":
        more = {"grouped_layout": np.repeat(np.arange(groups, dtype=np.int32), m)}
        m *= groups
    a_shape, b_shape = [*a_groups, m, k], [*b_groups, n, k]
    a = per_token(*a_shape) if row.dtype == "fp8" else normals(*a_shape).astype(dtype)
    b = per_block(*b_shape, seed=1) if row.dtype == "fp8" else normals(*b_shape, seed=1).astype(dtype)
    flip = lambda x: tuple(map(flip, x)) if isinstance(x, tuple) else x.swapaxes(-1, -2)  # noqa: E731
    a, b = flip(a) if row.layout[0] == "t" else a, flip(b) if row.layout[1] == "n" else b
    d = np.zeros([*a_groups, m, n], np.float32)
    if any(each.name == "head_splits" and each.default is None for each in row.arguments):
        more, d = {"head_splits": (64, 32, 64)}, np.zeros((m, n + 32), np.float32)
    return {"a": a, "b": b, "d": d, **more}


@pytest.mark.parametrize("row", [row for _, row in ROWS if row.dtype is not None], ids=lambda row: row.name)
def test_functions_call_their_operators_while_torch_traces(row, monkeypatch, groups_of_any_length):
    """That both paths of a function compute the same bits; here the operators are called as torch calls them."""
    module = module_of(next(module for module, each in ROWS if each is row))
    function, arguments = getattr(module, row.name), operands(row)
    expected = arguments["d"]
    function(**arguments)
    assert expected.any()

    class Ops:
        def __getattr__(self, name):
            def call(*given):
                assert name == row.operator.name and len(given) == len(schema_of(name))
                # A tuple of numbers arrives as a list.
                given = [list(x) if isinstance(x, tuple) else x for x in given]
                return OPERATORS[name][1](*given)

            return call

    monkeypatch.setattr(module._call, "is_compiling", lambda: True)
    monkeypatch.setattr(module._call, "ops", Ops)
    found = np.zeros_like(expected)
    function(**{**arguments, "d": found})
    assert (found == expected).all()


def test_a_part_of_the_epilogue_that_a_function_needs_is_not_none():
    arguments = operands(functions.FP8_SKIP_HEAD_MID)
    with pytest.raises(TypeError) as caught:
        oxigemm.deep_gemm.fp8_gemm_nt_skip_head_mid(**{**arguments, "head_splits": None})
    assert caught.value.argument == "head_splits"


@pytest.mark.parametrize("kind", [("fp4", "nt", "dense"), ("fp8", "ab", "dense"), ("fp8", "nt", "n_grouped")])
def test_kinds_of_gemm_that_do_not_exist(kind):
    with pytest.raises(ValueError, match="is unknown"):
        _oxigemm.GemmKind(*kind)


def test_structured_arguments_of_the_wrong_length():
    kind, d = _oxigemm.GemmKind("bfloat16", "nt", "dense"), np.zeros((8, 8), np.float32)
    with pytest.raises(TypeError, match=r"expected \(a, b\)"):
        _oxigemm.gemm(kind, (d, d, None), d, None, None, None)
    with pytest.raises(TypeError, match="expected a tuple of groups"):
        grouped = _oxigemm.GemmKind("bfloat16", "nt", "m_grouped_masked")
        _oxigemm.gemm(grouped, (d.astype(BF16), d), d, None, None, None)
