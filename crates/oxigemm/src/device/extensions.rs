//! Extensions of a device: state that higher layers keep for it, such as plans, without the device knowing their types.

use std::any::Any;
use std::sync::OnceLock;

/// One value of each type, made when it is first asked for and kept as long as the device.
///
/// Looking one up takes no lock: the values are a list that only grows, of two or three.
#[derive(Default)]
pub(crate) struct Extensions {
    first: OnceLock<Box<Node>>,
}

struct Node {
    value: Box<dyn Any + Send + Sync>,
    next: OnceLock<Box<Node>>,
}

impl Extensions {
    /// The value of a type.
    #[inline]
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> &T {
        let mut link = &self.first;
        loop {
            let node =
                link.get_or_init(|| Box::new(Node { value: Box::new(T::default()), next: OnceLock::new() }));
            if let Some(value) = node.value.downcast_ref() {
                return value;
            }
            link = &node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_type_has_one_value() {
        let extensions = Extensions::default();
        *extensions.get::<Mutex<u32>>().lock().unwrap() = 1;
        *extensions.get::<Mutex<u64>>().lock().unwrap() = 2;
        assert_eq!(*extensions.get::<Mutex<u32>>().lock().unwrap(), 1);
        assert_eq!(*extensions.get::<Mutex<u64>>().lock().unwrap(), 2);
    }
}
