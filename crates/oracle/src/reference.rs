//! Operands of a kernel, and what it has to make of them.

use crate::case::Operands;
use crate::format::{E2M1, E4M3, E5M2, F32, Float, Format, TF32, e2m1, power};
use crate::kernel::Kernel;
use crate::tensor_core::{Arithmetic, Scales, Scaling, UE8M0};

/// What memory must hold in the end.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// These bytes.
    Bits(Vec<u8>),
    /// Numbers, each within a part of a size.
    Near { values: Vec<f64>, sizes: Vec<f64>, part: f64 },
}

/// Operands, and what is expected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problem {
    /// Contents of buffers before the launch.
    pub(crate) inputs: Vec<(String, Vec<u8>)>,
    /// Buffers that are compared, with the type of their elements.
    pub(crate) outputs: Vec<(String, Format, Expected)>,
}

/// Random numbers (SplitMix64).
pub(crate) struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) * power(-53)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Numbers of a type: small integers, or normal ones. Integer types have integers of their range in either case.
    fn values(&mut self, format: Format, count: usize, operands: Operands) -> Vec<f64> {
        (0..count)
            .map(|_| match (format, operands) {
                (Format::I8, _) => self.below(200) as f64 - 100.0,
                (Format::I32, _) => self.below(1 << 20) as f64 - power(19),
                (Format::U8, _) => self.below(256) as f64,
                (_, Operands::Integers) => self.below(9) as f64 - 4.0,
                (_, Operands::Normals) => format.nearest(self.normal()),
            })
            .collect()
    }
}

/// A tensor of a kernel with its contents.
struct Tensor {
    arg: String,
    format: Format,
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// Builds the problem of one kernel.
pub(crate) struct Builder<'a> {
    kernel: &'a Kernel,
    operands: Operands,
    draw: Draw,
    problem: Problem,
}

/// What a kernel computes, on random operands.
pub(crate) fn problem(kernel: &Kernel, operands: Operands) -> Result<Problem, String> {
    let builder = Builder { kernel, operands, draw: Draw(17), problem: Problem::default() };
    match kernel.reference.as_str() {
        "dot" => builder.dot(),
        "dot_scaled" => builder.dot_scaled(),
        "attention" => builder.attention(),
        "softmax" => builder.softmax(),
        "layer_norm" => builder.layer_norm(),
        "gather_scatter" => builder.gather_scatter(),
        "histogram" => builder.histogram(),
        "column_sum" => builder.column_sum(),
        "row_max" => builder.row_max(),
        "add" => builder.add(),
        "count" => builder.count(),
        "copy" => builder.rows(|row| row.to_vec()),
        "cumsum" => builder.rows(cumulative),
        "sort" => builder.rows(sorted),
        "argmax" => builder.rows(|row| vec![first_of_largest(row)]),
        "transpose" => builder.transpose(),
        other => Err(format!("no reference is called {other}")),
    }
}

fn cumulative(row: &[f64]) -> Vec<f64> {
    row.iter()
        .scan(0.0, |sum, value| {
            *sum += value;
            Some(*sum)
        })
        .collect()
}

fn sorted(row: &[f64]) -> Vec<f64> {
    let mut sorted = row.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn first_of_largest(row: &[f64]) -> f64 {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter().position(|value| *value == most).unwrap_or(0) as f64
}

impl Builder<'_> {
    fn described(&self, name: &str) -> Result<Tensor, String> {
        let (arg, format, shape) =
            self.kernel.tensor(name).ok_or_else(|| format!("the kernel has no tensor {name}"))?;
        Ok(Tensor { arg, format, shape: shape.to_vec(), values: Vec::new() })
    }

    /// A random input.
    fn input(&mut self, name: &str) -> Result<Tensor, String> {
        let mut tensor = self.described(name)?;
        tensor.values = self.draw.values(tensor.format, tensor.shape.iter().product(), self.operands);
        self.given(&tensor.arg, tensor.format.encode(&tensor.values));
        Ok(tensor)
    }

    fn given(&mut self, arg: &str, bytes: Vec<u8>) {
        self.problem.inputs.push((arg.to_owned(), bytes));
    }

    /// Expects numbers, rounded to the type of the output.
    fn expect(&mut self, name: &str, values: &[f64]) -> Result<(), String> {
        let tensor = self.described(name)?;
        if tensor.shape.iter().product::<usize>() != values.len() {
            return Err(format!(
                "{name} has shape {:?}, and the reference {} numbers",
                tensor.shape,
                values.len()
            ));
        }
        let rounded: Vec<f64> = values.iter().map(|value| tensor.format.nearest(*value)).collect();
        let bits = Expected::Bits(tensor.format.encode(&rounded));
        self.problem.outputs.push((tensor.arg, tensor.format, bits));
        Ok(())
    }

    /// Expects numbers within a part of their sizes.
    fn expect_near(
        &mut self,
        name: &str,
        values: Vec<f64>,
        sizes: Vec<f64>,
        part: f64,
    ) -> Result<(), String> {
        let tensor = self.described(name)?;
        self.problem.outputs.push((tensor.arg, tensor.format, Expected::Near { values, sizes, part }));
        Ok(())
    }

    fn done(mut self) -> Result<Problem, String> {
        for name in &self.kernel.about.zeroed {
            let plain = name.strip_prefix('d').unwrap_or(name);
            let tensor = self.described(name).or_else(|_| self.described(plain))?;
            let bytes = tensor.shape.iter().product::<usize>() * tensor.format.bytes();
            self.given(&tensor.arg, vec![0; bytes]);
        }
        Ok(self.problem)
    }

    /// Rows of X, each made into a row of Y. Sums of numbers that are no integers depend on their order.
    fn rows(mut self, each: impl Fn(&[f64]) -> Vec<f64>) -> Result<Problem, String> {
        let x = self.input("x")?;
        let width = *x.shape.last().unwrap_or(&1);
        let values: Vec<f64> = x.values.chunks(width).flat_map(each).collect();
        if self.kernel.reference == "cumsum" && self.operands == Operands::Normals {
            let sizes = x
                .values
                .chunks(width)
                .flat_map(|row| cumulative(&row.iter().map(|value| value.abs()).collect::<Vec<_>>()));
            let sizes = sizes.collect();
            self.expect_near("y", values, sizes, power(-20))?;
        } else {
            self.expect("y", &values)?;
        }
        self.done()
    }

    fn transpose(mut self) -> Result<Problem, String> {
        let x = self.input("x")?;
        let (m, n) = (x.shape[0], x.shape[1]);
        let values: Vec<f64> = (0..m * n).map(|at| x.values[at % m * n + at / m]).collect();
        self.expect("y", &values)?;
        self.done()
    }

    fn row_max(mut self) -> Result<Problem, String> {
        let x = self.input("x")?;
        let most: Vec<f64> = x
            .values
            .chunks(x.shape[1])
            .map(|row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            .collect();
        self.expect("y", &x.values)?;
        self.expect("m", &most)?;
        self.done()
    }

    fn count(mut self) -> Result<Problem, String> {
        let values: Vec<f64> = (0..self.described("y")?.shape[0]).map(|i| i as f64).collect();
        self.expect("y", &values)?;
        self.done()
    }

    /// `Y += X`: one addition each.
    fn add(mut self) -> Result<Problem, String> {
        let (x, y) = (self.input("x")?, self.input("y")?);
        let sums: Vec<f64> = x.values.iter().zip(&y.values).map(|(x, y)| x + y).collect();
        self.expect("y", &sums)?;
        self.done()
    }

    fn column_sum(mut self) -> Result<Problem, String> {
        let x = self.input("x")?;
        let columns = |each: fn(f64) -> f64| -> Vec<f64> {
            let width = x.shape[1];
            (0..width)
                .map(|j| x.values.iter().skip(j).step_by(width).map(|value| each(*value)).sum())
                .collect()
        };
        let sums = columns(|value| value);
        match self.operands {
            Operands::Integers => self.expect("y", &sums)?,
            Operands::Normals => self.expect_near("y", sums, columns(f64::abs), power(-20))?,
        }
        self.done()
    }

    /// Counts of numbers below the bins; the script draws nothing else.
    fn histogram(mut self) -> Result<Problem, String> {
        let x = self.described("x")?;
        let bins = self.described("y")?.shape[0];
        let values: Vec<f64> =
            (0..x.shape.iter().product::<usize>()).map(|_| self.draw.below(bins as u64) as f64).collect();
        self.given(&x.arg, x.format.encode(&values));
        let mut counts = vec![0.0; bins];
        values.iter().for_each(|value| counts[*value as usize] += 1.0);
        self.expect("y", &counts)?;
        self.done()
    }

    /// `Y[index[i]] = X[index[i]]` for distinct rows; the others stay zeros.
    fn gather_scatter(mut self) -> Result<Problem, String> {
        let x = self.input("x")?;
        let index = self.described("index")?;
        let (rows, width) = (x.shape[0], x.shape[1]);
        let mut order: Vec<usize> = (0..rows).collect();
        for i in (1..rows).rev() {
            order.swap(i, self.draw.below(i as u64 + 1) as usize);
        }
        order.truncate(index.shape[0]);
        let numbers: Vec<f64> = order.iter().map(|row| *row as f64).collect();
        self.given(&index.arg, index.format.encode(&numbers));
        let mut values = vec![0.0; rows * width];
        for row in order {
            values[row * width..][..width].copy_from_slice(&x.values[row * width..][..width]);
        }
        self.expect("y", &values)?;
        self.done()
    }

    fn softmax(mut self) -> Result<Problem, String> {
        let x = self.input("x")?;
        let values: Vec<f64> = x
            .values
            .chunks(x.shape[1])
            .flat_map(|row| {
                let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = row.iter().map(|value| (value - most).exp()).sum();
                row.iter().map(move |value| (value - most).exp() / total)
            })
            .collect();
        self.expect_near("y", values.clone(), values, power(-19))?;
        self.done()
    }

    fn layer_norm(mut self) -> Result<Problem, String> {
        let (x, w, b) = (self.input("x")?, self.input("w")?, self.input("b")?);
        let n = x.shape[1];
        let (mut values, mut sizes) = (Vec::new(), Vec::new());
        for row in x.values.chunks(n) {
            let mean = row.iter().sum::<f64>() / n as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n as f64;
            for (j, value) in row.iter().enumerate() {
                let scaled = (value - mean) / (variance + 1e-5).sqrt() * w.values[j];
                values.push(scaled + b.values[j]);
                sizes.push(scaled.abs() + b.values[j].abs() + power(-10));
            }
        }
        // The result is FP16.
        self.expect_near("y", values, sizes, power(-11) * 1.01)?;
        self.done()
    }

    fn attention(mut self) -> Result<Problem, String> {
        let (q, k, v) = (self.input("q")?, self.input("k")?, self.input("v")?);
        let d = q.shape[1];
        let (mut values, mut sizes) = (Vec::new(), Vec::new());
        for row in q.values.chunks(d) {
            let logits: Vec<f64> = k.values.chunks(d).map(|key| dot(row, key) * 0.125).collect();
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for j in 0..d {
                let column = || v.values.iter().skip(j).step_by(d);
                values.push(weights.iter().zip(column()).map(|(w, v)| w * v).sum::<f64>() / total);
                // Small weights are subnormal in FP16.
                let size = weights.iter().zip(column()).map(|(w, v)| w * v.abs()).sum::<f64>() / total;
                sizes.push(size + power(-8));
            }
        }
        // Weights and the result are rounded to the type of V.
        let bits = v.format.float().map_or(0, |float| float.mantissa);
        self.expect_near("o", values, sizes, power(-bits))?;
        self.done()
    }

    /// `C = factor * A @ B^T`.
    fn dot(mut self) -> Result<Problem, String> {
        let major = |name, other| (self.kernel.word(name).unwrap_or("K") == other) as usize == 1;
        let (a_turned, b_turned) = (major("MAJOR_A", "M"), major("MAJOR_B", "N"));
        let (a, b, c) = (self.input("a")?, self.input("b")?, self.described("c")?);
        let (formats, accumulator) =
            ((a.format, b.format), self.kernel.word("SUM").unwrap_or("fp32").to_owned());
        let (a, m_k) = if a_turned {
            (turned(&a), [a.shape[1], a.shape[0]])
        } else {
            (a.values, [a.shape[0], a.shape[1]])
        };
        let b = if b_turned { turned(&b) } else { b.values };
        let k = m_k[1];
        let a: Vec<f64> = a.iter().map(|value| value * self.kernel.about.factor).collect();
        let exact = self.operands == Operands::Integers || c.format == Format::I32;
        let split = self.kernel.constant("SPLITS").is_some();
        let model = || {
            let operand = |format: Format| if format == Format::F32 { Some(TF32) } else { format.float() };
            let (x, y) = (operand(formats.0)?, operand(formats.1)?);
            let three = self.kernel.word("PREC") == Some("tf32x3");
            if three || split {
                return None;
            }
            Arithmetic::of(self.kernel, x, y, accumulator == "fp16")
        };
        if exact {
            self.expect("c", &products(&a, &b, k))?;
        } else if let Some(arithmetic) = model() {
            let (a, b) = if self.kernel.ptx.contains("cvt.rna.tf32") {
                (rounded_away(&a), rounded_away(&b))
            } else {
                (a, b)
            };
            self.expect("c", &arithmetic.matmul(&a, &b, &None, k))?;
        } else {
            let absolute = |values: &[f64]| values.iter().map(|value| value.abs()).collect::<Vec<_>>();
            let sizes = products(&absolute(&a), &absolute(&b), k);
            // FP32 accumulators of FP32 or BF16 operands.
            self.expect_near("c", products(&a, &b, k), sizes, power(-18))?;
        }
        self.done()
    }

    /// `C = (A * scales) @ (B * scales)^T`, with a scale for each group along K.
    fn dot_scaled(mut self) -> Result<Problem, String> {
        let group = self.kernel.constant("GROUP").ok_or("the kernel has no GROUP")? as usize;
        let (a, fa) = self.operand("a", "FA")?;
        let (b, fb) = self.operand("b", "FB")?;
        let k = a.len() / self.described("c")?.shape[0];
        let sa = self.scales("sa", a.len() / group, k / group, group)?;
        let sb = self.scales("sb", b.len() / group, k / group, group)?;
        let scale = |values: &[f64], scales: &[f64]| -> Vec<f64> {
            values.iter().enumerate().map(|(at, value)| value * scales[at / group]).collect()
        };
        let (wide_a, wide_b) = (scale(&a, &sa), scale(&b, &sb));
        let values = match (self.operands, Arithmetic::of(self.kernel, fa, fb, false)) {
            (Operands::Integers, _) => products(&wide_a, &wide_b, k),
            (_, Some(arithmetic)) if arithmetic.scaling == Scaling::Before => {
                arithmetic.matmul(&wide_a, &wide_b, &None, k)
            }
            (_, Some(arithmetic)) => {
                let format = if group == 16 { E4M3 } else { UE8M0 };
                arithmetic.matmul(&a, &b, &Some(Scales { a: &sa, b: &sb, format, group }), k)
            }
            (_, None) => return Err("the MMA instructions have no model".to_owned()),
        };
        self.expect("c", &values)?;
        self.done()
    }

    /// An operand of `dot_scaled`: two E2M1 numbers in each byte, the first in the lower bits.
    fn operand(&mut self, name: &str, constant: &str) -> Result<(Vec<f64>, Float), String> {
        let input = self.input(name)?;
        Ok(match self.kernel.word(constant) {
            Some("e2m1") => {
                let pairs = input.values.iter().map(|byte| *byte as u8);
                (pairs.flat_map(|byte| [e2m1(byte & 15), e2m1(byte >> 4)]).collect(), E2M1)
            }
            Some("e4m3") => (input.values, E4M3),
            Some("e5m2") => (input.values, E5M2),
            other => return Err(format!("{constant} is {other:?}")),
        })
    }

    /// Scales of one operand by row and group. Where a map describes them, they are packed in tiles of 128 rows and four
    /// groups, as `tcgen05.cp` takes them: the byte of row r and group g is `r % 32 * 16 + r / 32 * 4 + g`.
    fn scales(&mut self, name: &str, count: usize, groups: usize, group: usize) -> Result<Vec<f64>, String> {
        let tensor = self.described(name)?;
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for _ in 0..count {
            if group == 16 {
                let value = match self.operands {
                    Operands::Integers => [0.5, 1.0, 1.5, 2.0][self.draw.below(4) as usize],
                    Operands::Normals => Format::E4m3.nearest(0.5 + 1.5 * self.draw.unit()),
                };
                bytes.extend(Format::E4m3.encode(&[value]));
                values.push(value);
            } else {
                let exponent = self.draw.below(5) as i32 - 2;
                bytes.push((exponent + 127) as u8);
                values.push(power(exponent));
            }
        }
        if tensor.shape.len() == 5 {
            let mut packed = vec![0; count];
            for (at, byte) in bytes.iter().enumerate() {
                let (row, column) = (at / groups, at % groups);
                let tile = row / 128 * (groups / 4) + column / 4;
                packed[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4] = *byte;
            }
            bytes = packed;
        }
        self.given(&tensor.arg, bytes);
        Ok(values)
    }
}

fn turned(tensor: &Tensor) -> Vec<f64> {
    let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
    (0..rows * columns).map(|at| tensor.values[at % rows * columns + at / rows]).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// `A[m, k] @ B[n, k]^T`
fn products(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    a.chunks(k).flat_map(|row| b.chunks(k).map(move |column| dot(row, column))).collect()
}

/// To TF32, ties away from zero: `cvt.rna.tf32`.
fn rounded_away(values: &[f64]) -> Vec<f64> {
    values
        .iter()
        .map(|value| {
            let parts = F32.parts(*value);
            let unit = power(parts.exponent - TF32.mantissa);
            if *value == 0.0 { 0.0 } else { (value / unit).round() * unit }
        })
        .collect()
}
