//! Scales from one layout to another: in the simulator the bytes of the CPU, and of what is no power of two those that are documented.

use oxigemm::{
    DType, Device, Error, LaunchOptions, Sim, Tensor, blocked_scales,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor, random, transform_scales, transform_sf_into_required_layout,
};

use crate::quantize::{Layout, schedule};

#[test]
fn scales_survive_every_transform() {
    let simulator = Sim::new();
    let sim = Device::Sim(simulator.clone());
    for (turn, [rows, columns]) in [[1, 1], [33, 5], [130, 9], [64, 56], [4, 17]].into_iter().enumerate() {
        let powers: Vec<f32> = (0..2 * rows * columns)
            .map(|i| 2f32.powi((random::bits(turn as u64, i as u64) % 60) as i32 - 30))
            .collect();
        for (i, layout) in Layout::ALL.into_iter().enumerate() {
            for mn_major in [false, true] {
                simulator.set_options(schedule(turn + i + usize::from(mn_major)));
                let run = |device: &Device| {
                    let from = Layout::RowMajor.room([rows, columns], device);
                    let mut from =
                        if mn_major { Layout::MnMajor.room([rows, columns], device) } else { from };
                    from.write_f32(&powers[..rows * columns]).unwrap();
                    let mut to = layout.room([rows, columns], device);
                    transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
                    to.to_bytes().unwrap()
                };
                assert_eq!(run(&Device::Cpu), run(&sim), "{rows} {columns} {layout:?}");
            }
        }
        // Groups, each for itself.
        simulator.set_options(schedule(turn));
        let run = |device: &Device| {
            let from = Tensor::from_f32(DType::F32, &powers, &[2, rows, columns], device).unwrap();
            let pitch = rows.next_multiple_of(4);
            let to = Tensor::empty(DType::F32, &[2, columns, pitch], device).unwrap();
            let mut to = to.transpose(1, 2).unwrap().narrow(1, 0, rows).unwrap();
            transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
            let mut packed = Tensor::empty(DType::I32, &[2, rows, columns.div_ceil(4)], device).unwrap();
            transform_scales(&from, &mut packed, &LaunchOptions::default()).unwrap();
            assert_eq!(to.to_vec_f32().unwrap(), powers);
            (to.to_bytes().unwrap(), packed.to_bytes().unwrap())
        };
        assert_eq!(run(&Device::Cpu), run(&sim));
    }
}

/// 1x128 scales of a packed layout, against the definition of a block: `32x4` words of the rows 0, 32, 64, 96, 1, ...
#[test]
fn blocks_are_in_the_order_of_tensor_memory() {
    let device = Device::sim();
    let exponents: Vec<f32> = (0..130 * 6).map(|i| 2f32.powi(i % 100)).collect();
    let from = Tensor::from_f32(DType::F32, &exponents, &[130, 6], &device).unwrap();
    let mut to = blocked_scales(130, 6, &device).unwrap();
    transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
    let bytes = to.to_bytes().unwrap();
    assert_eq!(bytes.len(), 2 * 2 * 512);
    for row in 0..256 {
        for column in 0..8 {
            let block = (row / 128 * 2 + column / 4) * 512;
            let place = block + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
            let expected = if row < 130 && column < 6 { 127 + (row * 6 + column) % 100 } else { 0 };
            assert_eq!(usize::from(bytes[place]), expected, "row {row} column {column}");
        }
    }
}

/// Scales, and the exponents that they are rounded up to: of what is no positive number, those that are documented.
const EXPONENTS: [(f32, u8); 18] = [
    (1.0, 127),
    (1.000_000_1, 128),
    (3.0, 129),
    (0.75, 127),
    (0.1, 124),
    (0.0, 1),
    (-0.0, 1),
    (1e-45, 1),
    (1e-40, 1),
    (f32::MIN_POSITIVE, 1),
    (1.175_494_5e-38, 2),
    (1.7e38, 254),
    (f32::MAX, 254),
    (f32::INFINITY, 254),
    (f32::NEG_INFINITY, 254),
    (f32::NAN, 254),
    (-f32::NAN, 254),
    (-3.0, 129),
];

#[test]
fn what_is_no_power_of_two_is_rounded_up_in_packed_layouts() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let count = EXPONENTS.len();
    let scales = EXPONENTS.map(|(scale, _)| scale);
    // Along the rows and across them.
    for (turn, dims @ [rows, columns]) in [[count, 1], [1, count], [3, count / 3]].into_iter().enumerate() {
        for (i, layout) in [Layout::Packed, Layout::Blocked].into_iter().enumerate() {
            sim.set_options(schedule(turn + i));
            for device in [&Device::Cpu, &device] {
                let from = Tensor::from_f32(DType::F32, &scales, &dims, device).unwrap();
                let mut to = layout.room(dims, device);
                transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
                let bytes = to.to_bytes().unwrap();
                let fours = columns.div_ceil(4);
                for (i, (scale, exponent)) in EXPONENTS.into_iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let word = match layout {
                        Layout::Blocked => column / 4 * 128 + row % 32 * 4 + row / 32,
                        _ => row * fours + column / 4,
                    };
                    let found = bytes[4 * word + column % 4];
                    assert_eq!(found, exponent, "{scale} of {rows}x{columns} {layout:?} on {device}");
                }
                let others = bytes.iter().filter(|byte| **byte == 0).count();
                assert_eq!(others, bytes.len() - count, "what fills up is 0");
            }
        }
    }
}

#[test]
fn other_layouts_keep_every_bit_of_a_scale() {
    let scales = EXPONENTS.map(|(scale, _)| scale);
    let bits = scales.map(f32::to_bits);
    for device in [Device::Cpu, Device::sim()] {
        for layout in [Layout::RowMajor, Layout::MnMajor] {
            let from = Tensor::from_slice(&scales, &[3, 6], &device).unwrap();
            let mut to = layout.room([3, 6], &device);
            transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
            let found: Vec<u32> = to.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
            assert_eq!(found, bits, "{layout:?} on {device}");
        }
    }
}

/// Scales as a call finds them in memory that is not cleared: of every size, sign and kind.
#[test]
fn any_bits_are_packed_as_on_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (turn, dims @ [rows, columns]) in [[130, 9], [5, 70], [64, 8]].into_iter().enumerate() {
        let draw = |i: usize| f32::from_bits(random::bits(turn as u64, i as u64) as u32);
        let scales: Vec<f32> = (0..rows * columns).map(draw).collect();
        for (i, layout) in [Layout::Packed, Layout::Blocked].into_iter().enumerate() {
            sim.set_options(schedule(turn + i));
            let run = |device: &Device| {
                let from = Tensor::from_slice(&scales, &dims, device).unwrap();
                let mut to = layout.room(dims, device);
                transform_scales(&from, &mut to, &LaunchOptions::default()).unwrap();
                to.to_bytes().unwrap()
            };
            assert!(run(&Device::Cpu) == run(&device), "{dims:?} {layout:?}");
        }
    }
}

#[test]
fn a_graph_transforms_what_is_there_when_it_is_launched() {
    let device = Device::sim();
    let stream = device.new_stream().unwrap();
    let options = LaunchOptions { stream: Some(stream.clone()), ..Default::default() };
    let dims = [2, 33, 5];
    let mut from = Tensor::zeros(DType::F32, &dims, &device).unwrap();
    let mut packed = Tensor::zeros(DType::I32, &[2, 33, 2], &device).unwrap();
    let mut copy = Tensor::zeros(DType::F32, &[2, 5, 33], &device).unwrap().transpose(1, 2).unwrap();
    let graph = stream
        .capture(|_| {
            transform_scales(&from, &mut packed, &options)?;
            transform_scales(&from, &mut copy, &options)
        })
        .unwrap();
    assert!(packed.to_bytes().unwrap().iter().all(|byte| *byte == 0), "nothing is done while it is captured");
    for seed in [1, 2] {
        let scales: Vec<f32> = random::normals(seed, 330).into_iter().map(f32::abs).collect();
        from.write_f32(&scales).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let on_cpu = Tensor::from_slice(&scales, &dims, &Device::Cpu).unwrap();
        let mut expected = Tensor::zeros(DType::I32, &[2, 33, 2], &Device::Cpu).unwrap();
        transform_scales(&on_cpu, &mut expected, &LaunchOptions::default()).unwrap();
        assert_eq!(packed.to_bytes().unwrap(), expected.to_bytes().unwrap(), "seed {seed}");
        assert_eq!(copy.to_vec_f32().unwrap(), scales, "seed {seed}");
    }
}

#[test]
fn scales_in_new_memory_are_those_of_a_transform() {
    for device in [Device::Cpu, Device::sim()] {
        for dims in
            [&[5, 9][..], &[1, 1], &[3, 5, 9], &[1, 130, 3], &[2, 4, 4], &[0, 4, 4], &[2, 0, 4], &[7, 0]]
        {
            let count = dims.iter().product();
            let scales: Vec<f32> = random::normals(3, count).into_iter().map(f32::abs).collect();
            let from = Tensor::from_slice(&scales, dims, &device).unwrap();
            let options = LaunchOptions::default();
            let found = get_mn_major_tma_aligned_tensor(&from, &options).unwrap();
            let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
            let pitch = rows.next_multiple_of(4);
            let strides = [columns * pitch, 1, pitch];
            assert_eq!(found.dims(), dims);
            assert!(count == 0 || found.strides() == &strides[3 - dims.len()..], "{:?}", found.strides());
            assert_eq!(found.to_vec_f32().unwrap(), scales, "{dims:?} on {device}");

            let fours = columns.div_ceil(4);
            let packed_dims = [&dims[..dims.len() - 1], &[fours]].concat();
            let mut expected = Tensor::zeros(DType::I32, &packed_dims, &device).unwrap();
            transform_scales(&from, &mut expected, &options).unwrap();
            let found = get_mn_major_tma_aligned_packed_ue8m0_tensor(&from, &options).unwrap();
            assert_eq!(found.dims(), packed_dims);
            assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{dims:?} on {device}");
        }
        let vector = Tensor::zeros(DType::F32, &[4], &device).unwrap();
        let refused = get_mn_major_tma_aligned_tensor(&vector, &LaunchOptions::default());
        assert!(matches!(refused, Err(Error::Rank { argument: "scales", .. })), "{refused:?}");
    }
}

/// The launch is in the stream that the options name, and no other takes it.
#[test]
fn new_memory_is_written_in_the_stream_that_is_given() {
    let [device, other] = [Device::sim(), Device::sim()];
    let scales = Tensor::from_slice(&[1.0f32, 3.0], &[2, 1], &device).unwrap();
    let on =
        |device: &Device| LaunchOptions { stream: Some(device.new_stream().unwrap()), ..Default::default() };
    let found = get_mn_major_tma_aligned_packed_ue8m0_tensor(&scales, &on(&device)).unwrap();
    assert_eq!(found.to_vec::<i32>().unwrap(), [127, 129]);
    assert!(get_mn_major_tma_aligned_tensor(&scales, &on(&other)).is_err());
}

#[test]
fn scales_of_a_recipe_are_laid_out_once() {
    let options = LaunchOptions::default();
    let required = |sf: &Tensor, [mn, k]: [usize; 2], recipe, groups| {
        transform_sf_into_required_layout(sf, mn, k, recipe, groups, &options)
    };
    for device in [Device::Cpu, Device::sim()] {
        let numbers: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let groups = Tensor::from_slice(&numbers, &[2, 5, 3], &device).unwrap();
        let found = required(&groups, [5, 300], [1, 128], Some(2)).unwrap();
        assert_eq!((found.strides(), found.to_vec_f32().unwrap()), (&[24, 1, 8][..], numbers.clone()));
        // What is so already, and scales of blocks, are not copied.
        let again = required(&found, [5, 300], [1, 128], Some(2)).unwrap();
        assert_eq!(again.address(), found.address());
        let matrix = groups.select(0).unwrap();
        let blocks = required(&matrix, [600, 300], [128, 128], None).unwrap();
        assert_eq!((blocks.address(), blocks.strides()), (matrix.address(), matrix.strides()));
        for (wrong, argument) in [
            (required(&matrix, [5, 300], [1, 64], None), "recipe"),
            (required(&matrix, [6, 300], [1, 128], None), "sf"),
            (required(&matrix, [5, 300], [1, 128], Some(1)), "sf"),
            (required(&Tensor::zeros(DType::I32, &[5, 3], &device).unwrap(), [5, 300], [1, 128], None), "sf"),
        ] {
            assert_eq!(wrong.unwrap_err().argument(), Some(argument));
        }
    }
}

#[test]
fn groups_along_k_are_packed_each_for_itself() {
    let options = LaunchOptions::default();
    let simulator = Sim::new();
    // Five, none, one and four scales of each column.
    let (ks, mn) = ([640, 0, 128, 512], 6);
    let powers: Vec<f32> = (0..10 * mn).map(|i| 2f32.powi(i as i32 - 30)).collect();
    for (turn, device) in
        [Device::Cpu, Device::Sim(simulator.clone()), Device::Sim(simulator.clone())].iter().enumerate()
    {
        simulator.set_options(schedule(turn));
        let sf = Tensor::from_slice(&powers, &[10, mn], device).unwrap();
        let packed = |ks: &[usize], gran_k, alignment| {
            get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(&sf, ks, gran_k, alignment, &options)
        };
        let found = packed(&ks, 128, 128).unwrap();
        assert_eq!((found.dims(), found.strides()), (&[4, mn][..], &[8, 1][..]));
        let bytes = found.to_bytes().unwrap();
        let rows = [
            [Some(0), Some(1), Some(2), Some(3)],
            [Some(4), None, None, None],
            [Some(5), None, None, None],
            [Some(6), Some(7), Some(8), Some(9)],
        ];
        for (row, of_row) in rows.iter().enumerate() {
            for column in 0..mn {
                let exponent = |scale: &Option<usize>| scale.map_or(0, |row| (row * mn + column + 97) as u8);
                let expected: Vec<u8> = of_row.iter().map(exponent).collect();
                assert_eq!(bytes[(row * mn + column) * 4..][..4], expected, "{row} {column}");
            }
        }
        for (wrong, argument) in [
            (packed(&[640, 0, 100, 512], 128, 128), "ks"),
            (packed(&ks, 128, 0), "ks"),
            (packed(&ks, 0, 128), "gran_k"),
            (packed(&[640, 640, 128], 128, 128), "sf"),
        ] {
            assert_eq!(wrong.unwrap_err().argument(), Some(argument));
        }
    }
}
