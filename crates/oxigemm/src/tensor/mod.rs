//! Tensors: typed, strided views of shared memory on a device.

pub(crate) mod desc;
pub(crate) mod dtype;
pub(crate) mod granularity;
pub(crate) mod layout;
mod slabs;
mod storage;

use std::fmt;
use std::sync::Arc;

use desc::Operand;
pub use dtype::{DType, Element};
use layout::Layout;
pub use layout::MAX_RANK;
use storage::Storage;

use crate::device::Device;
use crate::error::{Error, Result};

/// An array of 1 to 4 dimensions on a device.
///
/// A tensor is a handle, as in torch: [`clone`](Clone::clone), [`view`](Tensor::view),
/// [`transpose`](Tensor::transpose) and [`narrow`](Tensor::narrow) copy no elements and allocate nothing; the result
/// shares its memory, and what is written through one is read through all. Functions take the tensors that they
/// write as `&mut Tensor`. This says what is written; it does not make the memory exclusive, because other handles
/// may share it. That is sound: on the host every read and every write locks the memory for its duration, in the
/// simulator every kernel does so too, and on a GPU the order of the streams decides, as for any device memory.
///
/// Base addresses are aligned to 256 bytes on every device.
///
/// ```
/// use oxigemm::{DType, Device, Tensor};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &Device::Cpu)?;
/// let right = x.transpose(0, 1)?.narrow(0, 1, 2)?;
/// assert_eq!(right.dims(), [2, 2]);
/// assert_eq!(right.strides(), [1, 3]);
/// assert_eq!(right.to_vec_f32()?, [2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    dtype: DType,
    layout: Layout,
    /// Bytes from the start of the storage to the first element.
    offset: usize,
}

impl Tensor {
    /// A new tensor whose elements are not set: zeros on the CPU, whatever the memory held on a GPU,
    /// and in the simulator memory that a kernel must not read.
    pub fn empty(dtype: DType, dims: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::new(dtype, dims, |bytes| Storage::empty(device, bytes))
    }

    /// A new tensor of zeros.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let d = Tensor::zeros(DType::Bf16, &[128, 4096], &Device::Cpu)?;
    /// assert_eq!(d.len(), 128 * 4096);
    /// assert_eq!(d.address() % 256, 0);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn zeros(dtype: DType, dims: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::new(dtype, dims, |bytes| Storage::zeros(device, bytes))
    }

    /// A new tensor with these elements in row-major order.
    ///
    /// ```
    /// # use oxigemm::{bf16, DType, Device, Tensor};
    /// let ones = Tensor::from_slice(&[bf16::ONE; 6], &[2, 3], &Device::Cpu)?;
    /// assert_eq!(ones.dtype(), DType::Bf16);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn from_slice<T: Element>(values: &[T], dims: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(T::DTYPE, bytemuck::cast_slice(values), dims, device)
    }

    /// A new tensor of any type with these values, each rounded to the type.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let x = Tensor::from_f32(DType::E4m3, &[1.0, 1.06, 500.0], &[3], &Device::Cpu)?;
    /// assert_eq!(x.to_vec_f32()?, [1.0, 1.0, 448.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn from_f32(dtype: DType, values: &[f32], dims: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(dtype, &dtype.encode(values), dims, device)
    }

    /// A new tensor from the little-endian bytes of its elements in row-major order; for FP8, the codes.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let x = Tensor::from_bytes(DType::E4m3, &[0x38, 0x40], &[1, 2], &Device::Cpu)?;
    /// assert_eq!(x.to_vec_f32()?, [1.0, 2.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn from_bytes(dtype: DType, bytes: &[u8], dims: &[usize], device: &Device) -> Result<Tensor> {
        let layout = Layout::contiguous(dims, dtype.size())?;
        check_bytes(&layout, dtype, bytes)?;
        let mut tensor = Tensor::empty(dtype, dims, device)?;
        tensor.write_bytes(bytes)?;
        Ok(tensor)
    }

    /// A tensor in memory of another owner, with any strides in elements: an array of numpy, or a tensor of torch.
    ///
    /// # Safety
    /// The elements must be memory of the device that stays alive as long as the tensor and its views, and until work
    /// on it is done. Nobody else may write it while it is read through the tensor, or use it while it is written.
    ///
    /// # Errors
    /// Ranks outside of 1 to 4; shapes whose end is not within the address space.
    ///
    /// ```
    /// use oxigemm::{DType, Device, Tensor};
    ///
    /// let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let address = values.as_ptr().expose_provenance() as u64;
    /// // SAFETY: the values outlive the tensor, which only reads them.
    /// let columns = unsafe { Tensor::from_raw_parts(DType::F32, &[2, 2], &[1, 3], address, &Device::Cpu)? };
    /// assert_eq!(columns.to_vec_f32()?, [1.0, 4.0, 2.0, 5.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub unsafe fn from_raw_parts(
        dtype: DType,
        dims: &[usize],
        strides: &[usize],
        address: u64,
        device: &Device,
    ) -> Result<Tensor> {
        let layout = Layout::strided(dims, strides, dtype.size())?;
        // SAFETY: the caller keeps the same contract.
        let storage = unsafe { Storage::foreign(device, address, layout.span() * dtype.size()) };
        Ok(Tensor { storage: Arc::new(storage), dtype, layout, offset: 0 })
    }

    fn new(dtype: DType, dims: &[usize], allocate: impl FnOnce(usize) -> Result<Storage>) -> Result<Tensor> {
        let layout = Layout::contiguous(dims, dtype.size())?;
        let storage = Arc::new(allocate(layout.len() * dtype.size())?);
        Ok(Tensor { storage, dtype, layout, offset: 0 })
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The distance between neighbours along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        self.layout.strides()
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Where the memory is.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The address of the first element, in the address space of the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.storage.address() + self.offset as u64
    }

    /// The description of this tensor for an argument check, under the argument's name.
    #[must_use]
    pub fn describe(&self, name: &'static str) -> Operand {
        let mut operand = Operand {
            name,
            dtype: self.dtype,
            rank: self.dims().len(),
            dims: [1; MAX_RANK],
            strides: [1; MAX_RANK],
            address: self.address(),
            device: self.device().id(),
            exchanged: false,
        };
        // A layout spans at most isize::MAX bytes.
        for (to, &from) in operand.dims.iter_mut().zip(self.dims()) {
            *to = from as i64;
        }
        for (to, &from) in operand.strides.iter_mut().zip(self.strides()) {
            *to = from as i64;
        }
        operand
    }

    /// The same elements in another shape; the tensor must be contiguous.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[4, 6], &Device::Cpu)?;
    /// assert_eq!(x.view(&[2, 2, 6])?.dims(), [2, 2, 6]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn view(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor { layout: self.layout.reshape(dims)?, ..self.clone() })
    }

    /// Elements of any type in the bytes of this tensor from `start` on, which is a multiple of their size.
    ///
    /// So one allocation holds several tensors. This one must be contiguous.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let memory = Tensor::zeros(DType::U8, &[1024], &Device::Cpu)?;
    /// let scales = memory.part(512, DType::F32, &[8, 16])?;
    /// assert_eq!(scales.address(), memory.address() + 512);
    /// assert!(memory.part(513, DType::F32, &[8]).is_err());
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn part(&self, start: usize, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        if !self.is_contiguous() {
            return Err(Error::Stride {
                argument: "tensor",
                expected: "a contiguous tensor, whose bytes alone can be parts".to_owned(),
                found: format!("strides {:?} for {:?}", self.strides(), self.dims()),
            });
        }
        let layout = Layout::contiguous(dims, dtype.size())?;
        let bytes = self.len() * self.dtype.size();
        if start.checked_add(layout.len() * dtype.size()).is_none_or(|end| end > bytes) {
            return Err(Error::Shape {
                argument: "range",
                expected: format!("{dims:?} of {dtype} from byte {start} on within {bytes} bytes"),
                found: format!("{} bytes", layout.len() * dtype.size()),
            });
        }
        let offset = self.offset + start;
        if !offset.is_multiple_of(dtype.size()) {
            return Err(Error::Alignment {
                argument: "start",
                expected: format!("a multiple of {} bytes, the size of {dtype}", dtype.size()),
                found: start.to_string(),
            });
        }
        Ok(Tensor { storage: self.storage.clone(), dtype, layout, offset })
    }

    /// A matrix whose rows are all this vector. It can be read only.
    pub(crate) fn repeated(&self, rows: usize) -> Result<Tensor> {
        let layout = Layout::strided(&[rows, self.len()], &[0, 1], self.dtype.size())?;
        Ok(Tensor { layout, ..self.clone() })
    }

    /// The same elements with two dimensions swapped.
    pub fn transpose(&self, first: usize, second: usize) -> Result<Tensor> {
        Ok(Tensor { layout: self.layout.transpose(first, second)?, ..self.clone() })
    }

    /// The part `start..start + len` of one dimension.
    ///
    /// Narrowing the last dimension of a wider tensor is how a matrix with a free row pitch is made:
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let pitched = Tensor::zeros(DType::E4m3, &[64, 112], &Device::Cpu)?.narrow(1, 0, 100)?;
    /// assert_eq!((pitched.dims(), pitched.strides()), (&[64, 100][..], &[112, 1][..]));
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        let (layout, elements) = self.layout.narrow(dim, start, len)?;
        let offset = self.offset + elements * self.dtype.size();
        Ok(Tensor { layout, offset, ..self.clone() })
    }

    /// One element of the first dimension, which is left out: a matrix of several, or a row of a matrix.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let pairs = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &Device::Cpu)?;
    /// assert_eq!(pairs.select(1)?.to_vec_f32()?, [3.0, 4.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn select(&self, index: usize) -> Result<Tensor> {
        let one = self.narrow(0, index, 1)?;
        Ok(Tensor { layout: one.layout.without_first()?, ..one })
    }

    /// The bytes of the elements in row-major order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.gather(&self.layout)
    }

    /// The elements in row-major order; `T` must be the tensor's own type.
    ///
    /// ```
    /// # use oxigemm::{bf16, DType, Device, Tensor};
    /// let x = Tensor::zeros(DType::Bf16, &[2], &Device::Cpu)?;
    /// assert_eq!(x.to_vec::<bf16>()?, [bf16::ZERO; 2]);
    /// assert!(x.to_vec::<f32>().is_err());
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType {
                argument: "tensor",
                expected: T::DTYPE.to_string(),
                found: self.dtype.to_string(),
            });
        }
        Ok(bytemuck::pod_collect_to_vec(&self.to_bytes()?))
    }

    /// The elements in row-major order as `f32`, from any type.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        Ok(self.dtype.decode(&self.to_bytes()?))
    }

    /// Writes every element from little-endian bytes in row-major order.
    ///
    /// On a GPU this waits for all work before it, and each gap-free run of memory is a transfer of its own: it is
    /// for setting up and for checking.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        check_bytes(&self.layout, self.dtype, bytes)?;
        if self.layout.overlaps_itself() {
            return Err(Error::Stride {
                argument: "tensor",
                expected: "elements in places of their own, as they are written".to_owned(),
                found: format!("strides {:?} for {:?}", self.strides(), self.dims()),
            });
        }
        let size = self.dtype.size();
        let order = self.layout.memory_order();
        let target = self.layout.permute(order);
        // Long runs matter on a GPU, where each is one transfer: bring the bytes into the order of the memory.
        let source = Layout::contiguous(self.dims(), size)?.permute(order);
        let reordered = if source.is_contiguous() { None } else { Some(gather(bytes, &source, size)) };
        let mut rest = reordered.as_deref().unwrap_or(bytes);
        let pieces = target.runs().map(|(start, len)| {
            let (piece, tail) = rest.split_at(len * size);
            rest = tail;
            (self.offset + start * size, piece)
        });
        self.storage.write(pieces)
    }

    /// Writes every element from `f32` values in row-major order, each rounded to the tensor's type.
    pub fn write_f32(&mut self, values: &[f32]) -> Result<()> {
        self.write_bytes(&self.dtype.encode(values))
    }

    /// Copies the elements of another tensor of the same shape and type, from any device.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let source = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &Device::Cpu)?;
    /// let mut target = Tensor::zeros(DType::F32, &[2, 2], &Device::Cpu)?.transpose(0, 1)?;
    /// target.copy_from(&source)?;
    /// assert_eq!(target.to_vec_f32()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn copy_from(&mut self, source: &Tensor) -> Result<()> {
        if source.dtype != self.dtype {
            return Err(Error::DType {
                argument: "source",
                expected: self.dtype.to_string(),
                found: source.dtype.to_string(),
            });
        }
        if source.dims() != self.dims() {
            return Err(Error::Shape {
                argument: "source",
                expected: format!("{:?}", self.dims()),
                found: format!("{:?}", source.dims()),
            });
        }
        self.write_bytes(&source.to_bytes()?)
    }

    /// A copy on `device`, without gaps, that keeps the order of the dimensions in memory.
    ///
    /// So an MN-major tensor of scales stays MN-major.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let scales = Tensor::zeros(DType::F32, &[56, 128], &Device::Cpu)?.transpose(0, 1)?;
    /// assert_eq!(scales.to_device(&Device::Cpu)?.strides(), [1, 128]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        let order = self.layout.memory_order();
        let ordered = self.layout.permute(order);
        let bytes = self.gather(&ordered)?;
        let copy = Tensor::from_bytes(self.dtype, &bytes, ordered.dims(), device)?;
        let mut back = [0; MAX_RANK];
        for (place, dim) in order.into_iter().enumerate() {
            back[dim] = place;
        }
        Ok(Tensor { layout: copy.layout.permute(back), ..copy })
    }

    /// This tensor if it is contiguous, else a contiguous copy on the same device.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        Tensor::from_bytes(self.dtype, &self.to_bytes()?, self.dims(), self.device())
    }

    fn gather(&self, layout: &Layout) -> Result<Vec<u8>> {
        let size = self.dtype.size();
        let range = self.offset..self.offset + layout.span() * size;
        self.storage.read(range, |bytes| gather(bytes, layout, size))
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype)
            .field("dims", &self.dims())
            .field("strides", &self.strides())
            .field("device", self.device())
            .field("address", &format_args!("{:#x}", self.address()))
            .finish()
    }
}

/// The elements of `layout` in row-major order of its index.
fn gather(bytes: &[u8], layout: &Layout, size: usize) -> Vec<u8> {
    let mut gathered = Vec::with_capacity(layout.len() * size);
    for (start, len) in layout.runs() {
        gathered.extend_from_slice(&bytes[start * size..(start + len) * size]);
    }
    gathered
}

fn check_bytes(layout: &Layout, dtype: DType, bytes: &[u8]) -> Result<()> {
    let expected = layout.len() * dtype.size();
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Error::Shape {
        argument: "values",
        expected: format!("{} {dtype} elements ({expected} bytes) for {:?}", layout.len(), layout.dims()),
        found: format!("{} bytes", bytes.len()),
    })
}
