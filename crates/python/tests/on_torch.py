"""The functions on numpy arrays, computed on torch tensors: tests of numpy arrays are tests of torch and of a GPU."""

import ml_dtypes
import numpy as np
import torch

from oxigemm.deep_gemm import epilogue

DTYPES = {
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.bool_): torch.bool,
}
if hasattr(torch, "float8_e8m0fnu"):
    DTYPES[np.dtype(ml_dtypes.float8_e8m0fnu)] = torch.float8_e8m0fnu
BACK = {there: here for here, there in DTYPES.items()}


def address(array):
    return array.__array_interface__["data"][0]


def span(array):
    """The bytes from the first element to the last."""
    if array.size == 0:
        return 0
    return sum((dim - 1) * stride for dim, stride in zip(array.shape, array.strides)) + array.itemsize


def bytes_at(start, count):
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * count).from_address(start), np.uint8)


class Memory:
    """Tensors for arrays; those that share memory share it there."""

    def __init__(self, arrays, device):
        ranges = sorted((address(x), address(x) + span(x)) for x in arrays if x.size)
        merged = []
        for start, end in ranges:
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.device, self.pieces = device, []
        for start, end in merged:
            pad = start % 256
            memory = torch.zeros(pad + end - start, dtype=torch.uint8, device=device)
            memory[pad:] = torch.from_numpy(bytes_at(start, end - start).copy()).to(device)
            self.pieces.append((start, end, pad, memory))

    def tensor(self, array):
        dtype = DTYPES[array.dtype]
        strides = [stride // array.itemsize for stride in array.strides]
        if array.size == 0:
            return torch.empty(array.shape, dtype=dtype, device=self.device)
        start, _, pad, memory = next(p for p in self.pieces if p[0] <= address(array) < p[1])
        first = pad + address(array) - start
        return memory[first : first + span(array)].view(dtype).as_strided(array.shape, strides)

    def copy_back(self, array):
        if array.size == 0 or not array.flags.writeable:
            return
        start, _, pad, memory = next(p for p in self.pieces if p[0] <= address(array) < p[1])
        first = pad + address(array) - start
        found = memory[first : first + span(array)].cpu().numpy()
        array[...] = np.ndarray(array.shape, array.dtype, found, strides=array.strides)


def to_numpy(tensor):
    """A tensor as an array of the same strides."""
    dtype = BACK[tensor.dtype]
    if tensor.numel() == 0:
        return np.empty(tensor.shape, dtype)
    count = sum((dim - 1) * stride for dim, stride in zip(tensor.shape, tensor.stride())) + 1
    flat = torch.as_strided(tensor, (count,), (1,), tensor.storage_offset())
    values = flat.view(torch.uint8).cpu().numpy()
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    return np.ndarray(tuple(tensor.shape), dtype, values, strides=strides)


def on_torch(function, device):
    """The function on tensors of a device, for arrays."""

    def run(*arguments, **named):
        arrays = []

        def find(x):
            if isinstance(x, np.ndarray) and x.dtype in DTYPES and all(stride >= 0 for stride in x.strides):
                arrays.append(x)
            elif isinstance(x, (tuple, list)):
                for part in x:
                    find(part)
            elif isinstance(x, epilogue.FP8Quantization):
                find(x.sfd)

        find(list(arguments) + list(named.values()))
        memory = Memory(arrays, device)
        tensors = {id(x): memory.tensor(x) for x in arrays}

        def convert(x):
            if isinstance(x, (tuple, list)) and any(id(part) in tensors for part in x):
                return type(x)(convert(part) for part in x)
            if isinstance(x, epilogue.FP8Quantization):
                return type(x)(convert(x.sfd))
            return tensors.get(id(x), x)

        result = function(*map(convert, arguments), **{name: convert(x) for name, x in named.items()})
        if str(device) != "cpu":
            torch.cuda.synchronize()
        for array in arrays:
            memory.copy_back(array)

        def convert_back(found):
            if isinstance(found, tuple):
                return tuple(map(convert_back, found))
            if not isinstance(found, torch.Tensor):
                return found
            same = [x for x in arrays if tensors[id(x)] is found]
            return same[0] if same else to_numpy(found)

        return convert_back(result)

    return run
