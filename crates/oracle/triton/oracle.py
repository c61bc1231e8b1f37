"""Writes the PTX of the oracle kernels, with a description of a launch of each. No GPU is needed.

    python oracle.py OUT_DIR [NAME ...]
"""
import os
import sys
import time

# Lines of these scripts in the PTX would hold the folder that they lie in.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(OUT, ".cache"))

import registry  # noqa: E402  (Triton reads the environment when it is imported)
import dots  # noqa: E402, F401
import others  # noqa: E402, F401
import tensor_memory  # noqa: E402, F401

failed = 0
for name in sys.argv[2:] or registry.KERNELS:
    start = time.time()
    try:
        size = len(registry.compile_one(name, OUT))
        print(f"{name}: {size} characters, {time.time() - start:.1f} s", flush=True)
    except Exception as error:
        failed += 1
        print(f"{name}: FAILED, {type(error).__name__}: {str(error).strip()[-800:]}", flush=True)
sys.exit(failed > 0)
