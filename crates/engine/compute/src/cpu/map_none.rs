//! What stands for `map` on systems where packed weights are not kept in files: no file can be mapped.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Size and alignment of a huge page, where there are some.
pub(super) const HUGE_BYTES: usize = 2 << 20;

/// A mapped file; there is none.
pub(super) struct FileMap(Infallible);

impl FileMap {
    pub fn new(_: &File, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub fn start(&self) -> *mut u8 {
        match self.0 {}
    }
    pub fn len(&self) -> usize {
        match self.0 {}
    }
    pub fn bytes(&self, _: Range<usize>) -> &[u8] {
        match self.0 {}
    }
    pub fn is_lost(&self) -> bool {
        match self.0 {}
    }
    pub fn lose(&self) {
        match self.0 {}
    }
    pub fn is_cached(&self, _: Range<usize>) -> bool {
        match self.0 {}
    }
    pub fn read_ahead(&self, _: Range<usize>) {
        match self.0 {}
    }
    pub fn huge_share(&self) -> Option<f64> {
        match self.0 {}
    }
    pub fn copy(&self, _: Range<usize>, _: &mut dyn FnMut() -> bool) -> io::Result<()> {
        match self.0 {}
    }
}
