//! Tensor maps: what is refused, and what the fields of `tensormap.replace` are.

use super::*;

fn spec() -> TensorMapSpec {
    TensorMapSpec {
        address: 0x1000,
        element: Element::Bf16,
        dims: vec![100, 7],
        strides: vec![208],
        box_dims: vec![64, 8],
        swizzle: Swizzle::B128,
    }
}

fn padded() -> TensorMapSpec {
    TensorMapSpec {
        element: Element::U4Padded,
        dims: vec![256, 7],
        strides: vec![128],
        box_dims: vec![128, 8],
        ..spec()
    }
}

fn images() -> (TensorMapSpec, Im2col) {
    let tensor = TensorMapSpec {
        dims: vec![64, 9, 14, 3],
        strides: vec![128, 1152, 16128],
        box_dims: vec![],
        ..spec()
    };
    (tensor, Im2col { lower: vec![-1, -1], upper: vec![-1, -1], channels: 64, pixels: 64 })
}

#[test]
fn encoding_round_trips() {
    let map = TensorMap::decode(&spec().encode().unwrap()).unwrap();
    assert_eq!(map.dims[..2], [100, 7]);
    assert_eq!(map.strides[1], 208);
    assert_eq!(map.swizzle, Swizzle::B128);
    assert_eq!(map.steps, [1; 5]);
    assert_eq!(spec().extent(), 200 + 6 * 208);
    assert_eq!(padded().extent(), 128 + 6 * 128);
    let (tensor, im2col) = images();
    let details = TensorMapDetails {
        element_strides: vec![1, 2, 3, 1],
        im2col: Some(im2col),
        ..TensorMapDetails::default()
    };
    let map = TensorMap::decode(&tensor.encode_with(&details).unwrap()).unwrap();
    assert_eq!(map.window, Some(Window { lower: [-1, -1, 0], upper: [-1, -1, 0] }));
    assert_eq!((map.box_dims[0], map.box_dims[1], map.steps), (64, 64, [1, 2, 3, 1, 1]));
}

fn replaced(mut bytes: [u8; 128], changes: &[(MapField, u64)]) -> Result<TensorMap, Fault> {
    for (field, value) in changes {
        let (at, new) = replacement(*field, *value)?;
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
    TensorMap::decode(&bytes)
}

#[test]
fn fields_are_replaced_by_the_numbers_of_the_manual() {
    let plain = TensorMapSpec { swizzle: Swizzle::None, dims: vec![128, 7], ..padded() };
    let replace = |field, value| replaced(plain.encode().unwrap(), &[(field, value)]);
    let types = [
        (0, Element::U8),
        (3, Element::S32),
        (6, Element::F16),
        (7, Element::F32),
        (8, Element::F32Ftz),
        (9, Element::F64),
        (10, Element::Bf16),
        (11, Element::Tf32),
        (12, Element::Tf32Ftz),
        (13, Element::U4),
        (14, Element::U4Padded),
        (15, Element::U6Padded),
    ];
    for (number, element) in types {
        assert_eq!(replace(MapField::ElementType, number).unwrap().element, element);
    }
    let replace = |field, value| replaced(spec().encode().unwrap(), &[(field, value)]);
    assert_eq!(replace(MapField::Rank, 0).unwrap().rank, 1);
    assert_eq!(replace(MapField::Fill, 1).unwrap().fill, Fill::Nan);
    assert_eq!(replace(MapField::Swizzle, 0).unwrap().swizzle, Swizzle::None);
    assert_eq!(replace(MapField::SwizzleAtom, 1).unwrap().swizzle, Swizzle::B128Atom32);
    assert_eq!(replace(MapField::SwizzleAtom, 2).unwrap().swizzle, Swizzle::B128Atom32Flip8);
    assert_eq!(replace(MapField::SwizzleAtom, 3).unwrap().swizzle, Swizzle::B128Atom64);
    assert_eq!(replace(MapField::GlobalDim(1), 9).unwrap().dims[1], 9);
    assert_eq!(replace(MapField::GlobalStride(0), 512).unwrap().strides[1], 512);
    assert_eq!(replace(MapField::ElementStride(1), 3).unwrap().steps[1], 3);
    assert_eq!(replace(MapField::Interleave, 0).unwrap().dims[..2], [100, 7]);
    for (field, value) in [
        (MapField::ElementType, 16),
        (MapField::Interleave, 1),
        (MapField::ElementStride(0), 9),
        (MapField::Swizzle, 4),
        (MapField::Swizzle, 5),
        (MapField::SwizzleAtom, 4),
        (MapField::Fill, 2),
    ] {
        assert_eq!(replace(field, value).unwrap_err().kind, FaultKind::BadOperand, "{field:?} {value}");
    }
    // What no encoder would make is found when the map is used.
    for (field, value) in [
        (MapField::Swizzle, 1),
        (MapField::ElementType, 9),
        (MapField::GlobalStride(0), 8),
        (MapField::BoxDim(0), 4),
        (MapField::GlobalAddress, 8),
    ] {
        assert_eq!(replace(field, value).unwrap_err().kind, FaultKind::TensorMap, "{field:?} {value}");
    }
}

#[test]
fn zeros_become_a_map_when_every_field_is_set() {
    let fields = [
        (MapField::GlobalAddress, 0x1000),
        (MapField::Rank, 1),
        (MapField::BoxDim(0), 64),
        (MapField::BoxDim(1), 8),
        (MapField::GlobalDim(0), 100),
        (MapField::GlobalDim(1), 7),
        (MapField::GlobalStride(0), 208),
        (MapField::ElementStride(0), 1),
        (MapField::ElementStride(1), 1),
        (MapField::ElementType, 10),
        (MapField::Swizzle, 3),
    ];
    let host = TensorMap::decode(&spec().encode().unwrap()).unwrap();
    assert_eq!(replaced([0; 128], &fields).unwrap(), host);
    for missing in [1, 2, 3, 4, 5, 7, 8] {
        let rest: Vec<_> = fields.iter().enumerate().filter(|(i, _)| *i != missing).map(|f| *f.1).collect();
        assert_eq!(replaced([0; 128], &rest).unwrap_err().kind, FaultKind::TensorMap, "{missing}");
    }
    assert_eq!(replaced([7; 128], &fields).unwrap_err().kind, FaultKind::TensorMap);
}

#[test]
fn what_the_driver_refuses_is_refused() {
    let (tensor, im2col) = images();
    let with = |im2col: Im2col| {
        tensor.encode_with(&TensorMapDetails { im2col: Some(im2col), ..TensorMapDetails::default() })
    };
    assert!(with(im2col.clone()).is_ok());
    for broken in [
        Im2col { lower: vec![-129, -1], ..im2col.clone() },
        Im2col { upper: vec![-1, 128], ..im2col.clone() },
        Im2col { upper: vec![-1], ..im2col.clone() },
        Im2col { upper: vec![-10, -1], ..im2col.clone() },
        Im2col { channels: 128, ..im2col.clone() },
        Im2col { channels: 4, ..im2col.clone() },
        Im2col { pixels: 1025, ..im2col.clone() },
    ] {
        assert_eq!(with(broken.clone()).unwrap_err().kind, FaultKind::Launch, "{broken:?}");
    }
    for broken in [
        TensorMapSpec { address: 0x1008, ..spec() },
        TensorMapSpec { strides: vec![200], ..spec() },
        TensorMapSpec { strides: vec![], ..spec() },
        TensorMapSpec { box_dims: vec![128, 8], ..spec() },
        TensorMapSpec { box_dims: vec![4, 8], ..spec() },
        TensorMapSpec { box_dims: vec![64, 257], ..spec() },
        TensorMapSpec { dims: vec![0, 7], ..spec() },
        TensorMapSpec { address: 0x1010, ..padded() },
        TensorMapSpec { dims: vec![192, 7], ..padded() },
        TensorMapSpec { strides: vec![144], ..padded() },
        TensorMapSpec { box_dims: vec![64, 8], ..padded() },
        TensorMapSpec { swizzle: Swizzle::B64, ..padded() },
        TensorMapSpec { swizzle: Swizzle::B128Atom64, ..padded() },
        TensorMapSpec { swizzle: Swizzle::B128Atom32Flip8, element: Element::U6Padded, ..padded() },
        TensorMapSpec { element: Element::U4, dims: vec![63, 7], box_dims: vec![32, 8], ..padded() },
        TensorMapSpec { element: Element::U4, box_dims: vec![16, 8], ..padded() },
    ] {
        assert_eq!(broken.encode().unwrap_err().kind, FaultKind::Launch, "{broken:?}");
    }
    assert!(padded().encode().is_ok());
    assert!(TensorMapSpec { element: Element::U4, box_dims: vec![256, 8], ..padded() }.encode().is_ok());
    assert!(TensorMap::decode(&[0; 128]).is_err());
    let bytes = TensorMapSpec { element: Element::U16, ..spec() };
    assert_eq!(bytes.encode_with_fill(Fill::Nan).unwrap_err().kind, FaultKind::Launch);
    assert_eq!(padded().encode_with_fill(Fill::Nan).unwrap_err().kind, FaultKind::Launch);
    let steps = |element_strides| TensorMapDetails { element_strides, ..TensorMapDetails::default() };
    assert!(spec().encode_with(&steps(vec![1, 8])).is_ok());
    assert_eq!(spec().encode_with(&steps(vec![1, 9])).unwrap_err().kind, FaultKind::Launch);
    assert_eq!(spec().encode_with(&steps(vec![1])).unwrap_err().kind, FaultKind::Launch);
    let huge = TensorMapSpec { dims: vec![1 << 32; 5], strides: vec![1 << 39; 4], ..spec() };
    assert_eq!(huge.extent(), u64::MAX);
}
