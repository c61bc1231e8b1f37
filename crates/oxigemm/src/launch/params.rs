//! Arguments of the kernels that take a struct of them.

use std::ffi::c_void;

use oxigemm_kernels::gemm::params::{Args, GroupedArgs};
use oxigemm_kernels::gemm::transpose;

use super::args::KernelArgs;
use crate::device::launch::{KernelArg, KernelParams};

impl KernelParams for transpose::Args {
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R {
        launch(&self.pointers())
    }

    fn values(&self) -> Vec<KernelArg> {
        let values = |job: &transpose::Job| {
            let (addresses, numbers) = job.arguments();
            addresses.into_iter().map(KernelArg::U64).chain(numbers.into_iter().map(KernelArg::U32))
        };
        self.jobs.iter().flat_map(values).collect()
    }
}

impl KernelParams for KernelArgs {
    #[inline]
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R {
        let (pointers, count) = self.pointers();
        launch(&pointers[..count])
    }

    fn values(&self) -> Vec<KernelArg> {
        let KernelArgs { product: args, groups, k_groups, fused, fused_groups, tail, dispatch } = self;
        let maps = [args.a, args.b, args.sfa_map, args.d_map].map(KernelArg::TensorMap);
        let [[sfa_mn, sfa_k], [sfb_mn, sfb_k]] = [args.sfa_strides, args.sfb_strides];
        let numbers = |numbers: &[u32]| numbers.iter().copied().map(KernelArg::U32).collect::<Vec<_>>();
        let addresses = |addresses: &[u64]| addresses.iter().copied().map(KernelArg::U64).collect::<Vec<_>>();
        let all = [
            maps.to_vec(),
            addresses(&[args.sfa, args.sfb, args.b_rows]),
            numbers(&[args.m, args.n, args.k_blocks, args.b_pitch, sfb_mn, sfb_k, args.scale_layouts]),
            numbers(&args.tuning),
            numbers(&[args.output_flags, sfa_mn, sfa_k]),
            addresses(&[args.d, args.c]),
            numbers(&[args.d_pitch, args.c_pitch]),
        ];
        let mut all: Vec<KernelArg> = all.into_iter().flatten().collect();
        debug_assert_eq!(all.len(), Args::COUNT);
        if let Some(GroupedArgs { groups, sfa_slab, sfb_group }) = *groups {
            all.push(KernelArg::U64(groups.layout));
            let numbers = [groups.kind, groups.groups, groups.alignment, groups.d_slab, sfa_slab, sfb_group];
            all.extend(numbers.map(KernelArg::U32));
            debug_assert_eq!(all.len(), Args::COUNT + GroupedArgs::COUNT);
        }
        if let Some(groups) = k_groups {
            all.extend([groups.ks, groups.map_room, groups.a, groups.b].map(KernelArg::U64));
            let numbers = [groups.groups, groups.extent, groups.d_slab, groups.keeps_empty];
            all.extend(numbers.map(KernelArg::U32));
        }
        if let Some(fused) = fused {
            all.extend([KernelArg::F32(fused.alpha), KernelArg::F32(fused.beta), KernelArg::U64(fused.bias)]);
            all.extend([fused.flags, fused.activation].into_iter().chain(fused.heads).map(KernelArg::U32));
            all.push(KernelArg::U64(fused.scales));
            all.extend(fused.scale_strides.map(KernelArg::U32));
        }
        if let Some(groups) = fused_groups {
            all.extend([groups.bias_group, groups.scales_slab].map(KernelArg::U32));
        }
        if let Some(tail) = tail {
            all.push(KernelArg::U64(tail.room));
            all.extend(tail.numbers().map(|number| KernelArg::U32(*number)));
        }
        if let Some(dispatch) = dispatch {
            all.push(KernelArg::U64(dispatch.counter));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_kernels::gemm::epilogue::fusion::{FusedArgs, FusedGroupArgs};
    use oxigemm_kernels::gemm::scheduler::dynamic::DispatchArgs;
    use oxigemm_kernels::gemm::scheduler::k_grouped::KGroupArgs;
    use oxigemm_kernels::gemm::scheduler::m_grouped::GroupArgs;
    use oxigemm_kernels::gemm::scheduler::stream_k::{Tail, TailArgs};

    /// A GPU is given pointers, the simulator values: both must mean the same parameters.
    #[test]
    fn pointers_and_values_are_the_same_parameters() {
        let map = |first: u64| std::array::from_fn(|i| first + i as u64);
        let product = Args {
            a: map(100),
            b: map(200),
            sfa_map: map(300),
            d_map: map(400),
            sfa: 1,
            sfb: 2,
            d: 3,
            c: 4,
            d_pitch: 5,
            c_pitch: 6,
            m: 7,
            n: 8,
            output_flags: 9,
            k_blocks: 10,
            sfa_strides: [11, 12],
            sfb_strides: [13, 14],
            scale_layouts: 15,
            tuning: [16, 17, 18, 47],
            b_rows: 19,
            b_pitch: 20,
        };
        let groups = GroupArgs { layout: 19, kind: 20, groups: 21, alignment: 22, d_slab: 23 };
        let groups = GroupedArgs { groups, sfa_slab: 24, sfb_group: 25 };
        let k_groups = KGroupArgs {
            ks: 26,
            map_room: 27,
            a: 28,
            b: 29,
            groups: 30,
            extent: 31,
            d_slab: 32,
            keeps_empty: 33,
        };
        let fused = FusedArgs {
            alpha: 34.0,
            beta: 35.0,
            bias: 36,
            flags: 37,
            activation: 38,
            heads: [39, 40, 41],
            scales: 42,
            scale_strides: [43, 44],
        };
        let fused_groups = Some(FusedGroupArgs { bias_group: 45, scales_slab: 46 });
        let tail = Tail { tiles: 70, helpers: 71, owners: [72, 73], help: [74, 75] };
        let tail = TailArgs { room: 69, tail };
        let none = KernelArgs {
            product,
            groups: None,
            k_groups: None,
            fused: None,
            fused_groups: None,
            tail: None,
            dispatch: None,
        };
        let each = [
            none,
            KernelArgs { groups: Some(groups), ..none },
            KernelArgs { groups: Some(groups), dispatch: Some(DispatchArgs { counter: 76 }), ..none },
            KernelArgs { k_groups: Some(k_groups), ..none },
            KernelArgs { fused: Some(fused), ..none },
            KernelArgs { tail: Some(tail), ..none },
            KernelArgs { groups: Some(groups), fused: Some(fused), fused_groups, ..none },
        ];
        for args in each {
            let (pointers, count) = args.pointers();
            let values = args.values();
            assert_eq!(values.len(), count);
            for (i, (pointer, value)) in pointers.iter().zip(values).enumerate() {
                let expected = match value {
                    KernelArg::U32(value) => value.to_le_bytes().to_vec(),
                    KernelArg::U64(value) => value.to_le_bytes().to_vec(),
                    KernelArg::F32(value) => value.to_le_bytes().to_vec(),
                    KernelArg::TensorMap(map) => map.iter().flat_map(|word| word.to_le_bytes()).collect(),
                };
                // SAFETY: a pointer to a field of `args`, which has the size of its value.
                let found = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), expected.len()) };
                assert_eq!(found, expected, "parameter {i}");
            }
        }
    }
}
