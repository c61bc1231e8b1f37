//! Parameters of a launch: scalars, addresses of buffers, tensor maps.

use oxigemm::DType;
use oxigemm_sim::{Element, Fill, Im2col, Param, Swizzle, TensorMapDetails, TensorMapSpec};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::buffers::Buffer;

/// A tensor map as it is described.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapSpec {
    buffer: String,
    /// Bytes from the beginning of the buffer to the first element.
    #[serde(default)]
    offset: u64,
    element: String,
    dims: Vec<u64>,
    #[serde(default)]
    strides: Vec<u64>,
    #[serde(rename = "box", default)]
    box_dims: Vec<u32>,
    #[serde(default)]
    element_strides: Vec<u32>,
    im2col: Option<Im2colSpec>,
    #[serde(default)]
    swizzle: Value,
    /// NaN instead of zeros out of bounds.
    #[serde(default)]
    nan_fill: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Im2colSpec {
    lower: Vec<i32>,
    upper: Vec<i32>,
    channels: u32,
    pixels: u32,
}

/// The scalar types of a parameter, for messages.
const SCALARS: &str = "u8, i8, bool, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64";

fn find<'a>(name: &str, buffers: &'a [Buffer]) -> Result<&'a Buffer, String> {
    buffers.iter().find(|buffer| buffer.name == name).ok_or_else(|| format!("there is no buffer `{name}`"))
}

/// Reads a parameter: an object with one key, and with an offset for a buffer.
pub fn parameter(spec: &Map<String, Value>, buffers: &[Buffer]) -> Result<Param, String> {
    let others = |name: &str| spec.keys().find(|key| *key != name && !(name == "buffer" && *key == "offset"));
    let first = spec.iter().find(|(key, _)| *key != "offset");
    let (kind, value) = match (spec.get("buffer"), spec.get("tensor_map"), first) {
        (Some(value), ..) => ("buffer", value),
        (_, Some(value), _) => ("tensor_map", value),
        (.., Some((kind, value))) => (kind.as_str(), value),
        _ => return Err(format!("expected a buffer, a tensor_map, or one of {SCALARS}")),
    };
    if let Some(other) = others(kind) {
        return Err(format!("`{other}` does not go with `{kind}`"));
    }
    match kind {
        "buffer" => {
            let name = value.as_str().ok_or("`buffer` takes the name of a buffer")?;
            let offset = match spec.get("offset") {
                None => 0,
                Some(offset) => offset.as_u64().ok_or("`offset` takes a number of bytes")?,
            };
            let buffer = find(name, buffers)?;
            if offset > buffer.len as u64 {
                let len = buffer.len;
                return Err(format!("offset {offset} lies behind buffer `{name}`, which has {len} bytes"));
            }
            Ok(Param::U64(buffer.address + offset))
        }
        "tensor_map" => {
            let map = MapSpec::deserialize(value).map_err(|error| format!("tensor_map: {error}"))?;
            tensor_map(&map, buffers)
        }
        _ => scalar(kind, value),
    }
}

/// A scalar of a type: a number, `true`, `"nan"`, `"inf"`, or the bits of it as `"0x7fc00000"`.
fn scalar(kind: &str, value: &Value) -> Result<Param, String> {
    let bits = match kind {
        "u8" | "i8" | "bool" => 8,
        "u16" | "i16" | "f16" | "bf16" => 16,
        "u32" | "i32" | "f32" => 32,
        "u64" | "i64" | "f64" => 64,
        _ => {
            return Err(format!("`{kind}` is not a parameter: a buffer, a tensor_map, or one of {SCALARS}"));
        }
    };
    let refuse = || format!("{value} is not a value of {kind}");
    let float = matches!(kind, "f16" | "bf16" | "f32" | "f64");
    let raw = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let bytes: Vec<u8> = if let Some(digits) = raw {
        let raw = u64::from_str_radix(digits, 16).map_err(|_| refuse())?;
        if bits < 64 && raw >> bits != 0 {
            return Err(refuse());
        }
        raw.to_le_bytes()[..bits / 8].to_vec()
    } else if float {
        let number = match value {
            Value::Number(number) => number.as_f64().ok_or_else(refuse)?,
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "nan" => f64::NAN,
                "inf" | "infinity" => f64::INFINITY,
                "-inf" | "-infinity" => f64::NEG_INFINITY,
                _ => return Err(refuse()),
            },
            _ => return Err(refuse()),
        };
        match kind {
            "f64" => number.to_le_bytes().to_vec(),
            "f32" => (number as f32).to_le_bytes().to_vec(),
            "f16" => DType::F16.encode(&[number as f32]),
            _ => DType::Bf16.encode(&[number as f32]),
        }
    } else {
        let number = match value {
            Value::Bool(value) => i128::from(*value),
            Value::Number(number) => {
                let unsigned = number.as_u64().map(i128::from);
                unsigned.or(number.as_i64().map(i128::from)).ok_or_else(refuse)?
            }
            _ => return Err(refuse()),
        };
        let (least, most) = match kind {
            "bool" => (0, 1),
            _ if kind.starts_with('u') => (0, (1i128 << bits) - 1),
            _ => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        };
        if !(least..=most).contains(&number) {
            return Err(format!("{value} does not fit {kind}: {least} to {most}"));
        }
        number.to_le_bytes()[..bits / 8].to_vec()
    };
    Ok(Param::Bytes(bytes))
}

fn tensor_map(map: &MapSpec, buffers: &[Buffer]) -> Result<Param, String> {
    let buffer = find(&map.buffer, buffers)?;
    let spec = TensorMapSpec {
        address: buffer.address.checked_add(map.offset).ok_or("the offset is too large")?,
        element: element(&map.element)?,
        dims: map.dims.clone(),
        strides: map.strides.clone(),
        box_dims: map.box_dims.clone(),
        swizzle: swizzle(&map.swizzle)?,
    };
    let details = TensorMapDetails {
        fill: if map.nan_fill { Fill::Nan } else { Fill::Zeros },
        element_strides: map.element_strides.clone(),
        im2col: map.im2col.as_ref().map(|im2col| Im2col {
            lower: im2col.lower.clone(),
            upper: im2col.upper.clone(),
            channels: im2col.channels,
            pixels: im2col.pixels,
        }),
    };
    let encoded = spec.encode_with(&details).map_err(|fault| fault.message)?;
    let extent = spec.extent().saturating_add(map.offset);
    if extent > buffer.len as u64 {
        let (name, len) = (&map.buffer, buffer.len);
        return Err(format!("the tensor has {extent} bytes, buffer `{name}` only {len}"));
    }
    Ok(encoded.into())
}

fn element(name: &str) -> Result<Element, String> {
    Ok(match name {
        "u8" | "i8" | "e4m3" | "e5m2" => Element::U8,
        "u16" => Element::U16,
        "u32" => Element::U32,
        "i32" => Element::S32,
        "u64" => Element::U64,
        "i64" => Element::S64,
        "f16" => Element::F16,
        "f32" => Element::F32,
        "f64" => Element::F64,
        "bf16" => Element::Bf16,
        "f32_ftz" => Element::F32Ftz,
        "tf32" => Element::Tf32,
        "tf32_ftz" => Element::Tf32Ftz,
        "u4" | "e2m1" => Element::U4,
        "u4_padded" => Element::U4Padded,
        "u6_padded" => Element::U6Padded,
        _ => return Err(format!("`{name}` is not an element type of a tensor map")),
    })
}

fn swizzle(value: &Value) -> Result<Swizzle, String> {
    Ok(match value {
        Value::Null => Swizzle::None,
        value => match value.as_u64() {
            Some(0) => Swizzle::None,
            Some(32) => Swizzle::B32,
            Some(64) => Swizzle::B64,
            Some(128) => Swizzle::B128,
            _ => return Err(format!("a swizzle has 0, 32, 64 or 128 bytes, not {value}")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<u8>, String> {
        match parameter(&serde_json::from_str(text).expect(text), &[])? {
            Param::Bytes(bytes) => Ok(bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn scalars_have_the_bytes_of_their_type() {
        for (text, bytes) in [
            (r#"{"u8": 255}"#, vec![255]),
            (r#"{"i8": -1}"#, vec![255]),
            (r#"{"bool": true}"#, vec![1]),
            (r#"{"u16": 513}"#, vec![1, 2]),
            (r#"{"i16": -2}"#, vec![254, 255]),
            (r#"{"f16": 1.5}"#, vec![0, 0x3e]),
            (r#"{"bf16": 1.5}"#, vec![0xc0, 0x3f]),
            (r#"{"f32": "nan"}"#, f32::NAN.to_le_bytes().to_vec()),
            (r#"{"f32": "-inf"}"#, f32::NEG_INFINITY.to_le_bytes().to_vec()),
            (r#"{"f32": "0x7fc00001"}"#, vec![1, 0, 0xc0, 0x7f]),
            (r#"{"f64": 0.1}"#, 0.1f64.to_le_bytes().to_vec()),
            (r#"{"i64": -1}"#, vec![255; 8]),
            (r#"{"u64": 18446744073709551615}"#, vec![255; 8]),
        ] {
            assert_eq!(read(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        for (text, part) in [
            (r#"{"u8": 256}"#, "does not fit u8: 0 to 255"),
            (r#"{"i8": -129}"#, "does not fit i8"),
            (r#"{"bool": 2}"#, "does not fit bool"),
            (r#"{"u32": -1}"#, "does not fit u32"),
            (r#"{"u32": 1.5}"#, "is not a value of u32"),
            (r#"{"u32": "nan"}"#, "is not a value of u32"),
            (r#"{"f32": "many"}"#, "is not a value of f32"),
            (r#"{"f16": "0x10000"}"#, "is not a value of f16"),
            (r#"{"f128": 1}"#, "`f128` is not a parameter"),
            (r#"{"u32": 1, "offset": 4}"#, "`offset` does not go with `u32`"),
            (r#"{"buffer": "x"}"#, "there is no buffer `x`"),
            ("{}", "expected a buffer"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
