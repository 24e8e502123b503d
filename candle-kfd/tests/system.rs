//! What differs from one operating system to the next: whether there is a driver at all.

use candle_kfd::{Error, Kfd};

#[test]
fn only_linux_has_the_driver() {
    let opened = Kfd::open();
    if cfg!(target_os = "linux") {
        assert!(!matches!(opened, Err(Error::System { .. })), "{opened:?}");
    } else {
        let system = std::env::consts::OS;
        assert_eq!(opened.unwrap_err(), Error::System { system });
    }
    let said = Error::System { system: "windows" }.to_string();
    assert!(
        said.contains("windows") && said.contains("Linux") && said.contains("HIP's runtime"),
        "{said}"
    );
}
