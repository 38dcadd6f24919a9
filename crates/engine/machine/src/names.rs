//! The names that mean this machine to its operator: a web page of another machine cannot have them.

use std::net::IpAddr;

/// This machine's own name, and all names that its hosts file maps to the loopback interface.
pub fn names() -> Vec<String> {
    let file = if cfg!(windows) { r"C:\Windows\System32\drivers\etc\hosts" } else { "/etc/hosts" };
    // Without the file there are no further names.
    let mut names = in_hosts(&std::fs::read_to_string(file).unwrap_or_default());
    names.extend(sysinfo::System::host_name().map(|name| name.to_ascii_lowercase()));
    names
}

fn in_hosts(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_here = words.next().and_then(|a| a.parse::<IpAddr>().ok()).is_some_and(|a| a.is_loopback());
        words.filter(|_| is_here).map(str::to_ascii_lowercase).collect::<Vec<_>>()
    };
    lines.flat_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_loopback_interface_are_read() {
        let text = "# hosts\n127.0.0.1 localhost Octet.Example.com # mine\n::1 ip6-localhost\n192.0.2.7 nas.lan\nnonsense here\n127.0.1.1\tbox.lan box";
        assert_eq!(in_hosts(text), ["localhost", "octet.example.com", "ip6-localhost", "box.lan", "box"]);
        assert!(names().iter().all(|name| !name.is_empty()));
    }
}
