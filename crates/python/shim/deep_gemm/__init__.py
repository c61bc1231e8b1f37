"""``oxigemm.deep_gemm`` under the name that engines look for."""

import oxigemm

oxigemm.install_as_deep_gemm()
