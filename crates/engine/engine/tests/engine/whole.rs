//! The check of a file that is not loaded finds what loading would find: it walks over the same plan.

use octet_engine::models::Limits;
use octet_engine::models::loader::check;

use crate::architectures::{cases, file};
use crate::common::encoders::text;
use crate::common::{On, limits, try_load};

#[test]
fn files_that_lack_a_tensor_are_refused_by_its_name() {
    for case in cases() {
        let name = text(&case["name"]).to_string();
        check(&file(&case)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tensors: Vec<String> = case["tensors"].as_object().expect("tensors").keys().cloned().collect();
        let mut named = 0;
        for tensor in &tensors {
            let mut less = case.clone();
            less["tensors"].as_object_mut().expect("tensors").remove(tensor);
            let file = file(&less);
            let checked = check(&file).err().map(|e| e.to_string());
            let loaded = try_load(&file, On::Reference, Limits { mtp: false, ..limits() }).err();
            // Of several that are missing then, either may be named.
            let kinds = [&checked, &loaded].map(|e| e.as_ref().map(|e| e.contains(tensor.as_str())));
            assert_eq!(kinds[0], kinds[1], "{name} without {tensor}: {checked:?}, {loaded:?}");
            named += usize::from(checked.is_some_and(|e| e.contains(tensor.as_str())));
        }
        // Others may be absent, such as biases, or decide what the rest is.
        assert!(3 * named >= tensors.len(), "{name}: {named} of {} tensors are missed", tensors.len());
    }
}
