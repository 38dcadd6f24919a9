//! Real servers: this test's own binary, started as a child, plays them.

use std::time::Duration;

use crate::common::{Server, alive, fast, get, pid_of, processes, settings, soon};
use octet_config::ProcessGroup;
use octet_process::{Error, Phase, Processes};

/// The server itself, when this binary is started as one.
#[test]
fn child() {
    crate::common::serves_if_enabled();
}

/// A process that has servers and is killed, when this binary is started as one.
#[test]
fn host() {
    if std::env::var_os("OCTET_TEST_HOST").is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let all = processes(vec![Server::new("a").mode("family").entry()]);
        let lease = all.lease("a").await.unwrap();
        use std::io::Write;
        let mut out = std::io::stdout();
        writeln!(out, "pids {}", get(lease.base_url(), "/pids").unwrap()).and_then(|()| out.flush()).unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_once_for_all_waiting_requests_and_stops_when_idle() {
    let server = Server::new("a").ready_after(200);
    let mut entry = server.entry();
    entry.ttl = Some(Duration::from_millis(300));
    let all = processes(vec![entry]);
    assert_eq!(all.status()[0].phase, Phase::Stopped);
    let answers: Vec<_> = (0..8)
        .map(|_| {
            let all = all.clone();
            tokio::spawn(async move {
                let lease = all.lease("a").await.unwrap();
                (get(lease.base_url(), "/").unwrap(), lease)
            })
        })
        .collect();
    // No lease is released before all have been requested: the server would end.
    let mut leases = Vec::new();
    for answer in answers {
        let (said, lease) = answer.await.unwrap();
        assert_eq!(said, "a");
        leases.push(lease);
    }
    assert_eq!(server.starts(), 1);
    let lease = all.lease("a").await.unwrap();
    drop(leases);
    let pid = pid_of(lease.base_url());
    // Until another one, which is idle from now on and has no lease, has ended.
    let mut entry = Server::new("other").entry();
    entry.ttl = Some(Duration::from_millis(300));
    let others = processes(vec![entry]);
    drop(others.lease("other").await.unwrap());
    soon(|| others.status()[0].phase == Phase::Stopped).await;
    assert!(alive(pid), "a lease keeps it");
    assert_eq!(all.status()[0].pid, Some(pid));
    drop(lease);
    // The process ends a moment before its waiters are notified.
    soon(|| all.status()[0].phase == Phase::Stopped).await;
    assert!(!alive(pid));
    let lease = all.lease("a").await.unwrap();
    assert_eq!((get(lease.base_url(), "/").unwrap().as_str(), server.starts()), ("a", 2));
    assert_eq!(all.lease("b").await.unwrap_err(), Error::Unknown("b".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_take_turns_and_never_run_together() {
    let (a, b) = (Server::new("a").ready_after(100), Server::new("b").ready_after(100));
    let all = processes(vec![a.entry(), b.entry()]);
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let all = all.clone();
            let id = if n % 2 == 0 { "a" } else { "b" };
            tokio::spawn(async move {
                for _ in 0..10 {
                    let lease = all.lease(id).await.unwrap();
                    assert_eq!(get(lease.base_url(), "/").unwrap(), id);
                    let running = all.status().iter().filter(|s| s.pid.is_some()).count();
                    assert_eq!(running, 1, "{:?}", all.status());
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    // Each turn serves all waiting clients, and a client may miss some turns.
    let starts = a.starts() + b.starts();
    assert!((2..=40).contains(&starts), "{starts} starts for 80 requests that alternate");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_may_run_together() {
    let (a, b) = (Server::new("a"), Server::new("b"));
    let group = ProcessGroup {
        id: "both".into(),
        swap: false,
        exclusive: true,
        persistent: false,
        members: vec!["a".into(), "b".into()],
    };
    let settings = octet_config::ProcessSettings { groups: vec![group], ..settings() };
    let all = Processes::with(vec![a.entry(), b.entry()], &settings, fast()).unwrap();
    let (first, second) = (all.lease("a").await.unwrap(), all.lease("b").await.unwrap());
    assert_ne!(first.base_url(), second.base_url(), "each has a port of its own");
    assert_eq!(get(first.base_url(), "/").unwrap() + &get(second.base_url(), "/").unwrap(), "ab");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_has_a_reason() {
    let server = Server::new("a").mode("fail");
    let mut missing = Server::new("m").entry();
    missing.cmd = vec!["octet-no-such-program".into()];
    let mut slow = Server::new("s").ready_after(3_600_000).entry();
    slow.check_endpoint = Some("/health".into());
    let settings =
        octet_config::ProcessSettings { health_check_timeout: Duration::from_secs(10), ..settings() };
    let mut options = fast();
    options.patience.backoff_min = Duration::from_secs(4);
    let all = Processes::with(vec![server.entry(), missing, slow], &settings, options).unwrap();
    let e = all.lease("a").await.unwrap_err();
    let text = e.to_string();
    assert!(text.contains("exit status 3") && text.contains("out of memory: buy more"), "{text}");
    let again = all.lease("a").await.unwrap_err();
    assert!(matches!(again, Error::Resting { .. }) && again.to_string().contains("exit status 3"), "{again}");
    assert_eq!(server.starts(), 1);
    let began = std::time::Instant::now();
    let again = loop {
        match all.lease("a").await {
            Err(Error::Resting { .. }) if began.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            again => break again,
        }
    };
    assert!(matches!(again, Err(Error::Start { .. })), "it is tried again: {again:?}");
    assert_eq!(server.starts(), 2);

    let e = all.lease("m").await.unwrap_err();
    assert!(e.to_string().contains("there is no program 'octet-no-such-program'"), "{e}");
    let e = all.lease("s").await.unwrap_err();
    assert!(e.to_string().contains("not ready in 10 s: it answers 503"), "{e}");
    soon(|| all.status().iter().all(|s| s.pid.is_none())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_server_is_restarted() {
    let server = Server::new("a");
    let all = processes(vec![server.entry()]);
    let lease = all.lease("a").await.unwrap();
    let pid = pid_of(lease.base_url());
    assert!(get(lease.base_url(), "/crash").is_err());
    soon(|| !alive(pid)).await;
    // Without a ttl it is always restarted, also without requests.
    soon(|| all.status()[0].pid.is_some_and(|p| p != pid)).await;
    drop(lease); // of a server that is gone: it frees nothing of the new one
    let lease = all.lease("a").await.unwrap();
    assert_ne!(pid_of(lease.base_url()), pid);
    assert_eq!(all.status()[0].active, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_its_server() {
    // It ignores SIGTERM, and so does its child process.
    let mut entry = Server::new("a").mode("family").deaf().entry();
    entry.unload_timeout = Duration::from_millis(300);
    let all = processes(vec![entry]);
    let lease = all.lease("a").await.unwrap();
    let pids = crate::common::pids(&get(lease.base_url(), "/pids").unwrap());
    assert!(pids.len() == 2 && pids.iter().all(|p| alive(*p)));
    drop(lease);
    all.unload("a").unwrap();
    soon(|| pids.iter().all(|p| !alive(*p)) && all.status()[0].phase == Phase::Stopped).await;
    assert_eq!(all.status()[0].failure, None);
    // The same where its leader goes first.
    let lease = all.lease("a").await.unwrap();
    let pids = crate::common::pids(&get(lease.base_url(), "/pids").unwrap());
    let _ = get(lease.base_url(), "/crash");
    soon(|| pids.iter().all(|p| !alive(*p))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cmd_stop_ends_it_where_there_is_one() {
    let server = Server::new("a");
    let mut entry = server.entry();
    let note = server.dir.path().join("stopped");
    let script = format!("echo $0 > {}; kill -9 $0", note.display());
    entry.unload_timeout = Duration::from_secs(30);
    entry.cmd_stop = Some(["/bin/sh", "-c", &script, "${PID}"].map(String::from).to_vec());
    let all = processes(vec![entry]);
    let lease = all.lease("a").await.unwrap();
    let pid = pid_of(lease.base_url());
    drop(lease);
    all.unload("a").unwrap();
    soon(|| !alive(pid)).await;
    assert_eq!(std::fs::read_to_string(note).unwrap().trim(), pid.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_client_leaves_the_queue() {
    let (a, b) = (Server::new("a"), Server::new("b"));
    let all = processes(vec![a.entry(), b.entry()]);
    let lease = all.lease("a").await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(300), all.lease("b"));
    assert!(waits.await.is_err());
    soon(|| all.status()[1].waiting == 0).await;
    drop(lease);
    // Who comes later is let through: all before it is done.
    drop(all.lease("a").await.unwrap());
    assert_eq!(b.starts(), 0, "no client waits for it any more");
    assert_eq!(all.status()[0].phase, Phase::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_and_queues_are_limited() {
    let mut entry = Server::new("a").entry();
    entry.concurrency_limit = Some(1);
    let options = octet_process::Options { queue_max: 1, ..fast() };
    let all = Processes::with(vec![entry], &settings(), options).unwrap();
    let first = all.lease("a").await.unwrap();
    let second = tokio::spawn({
        let all = all.clone();
        async move { all.lease("a").await }
    });
    soon(|| all.status()[0].waiting == 1).await;
    assert!(matches!(all.lease("a").await, Err(Error::QueueFull { waiting: 1, .. })));
    drop(first);
    drop(second.await.unwrap().unwrap());
    all.lease("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_configuration_keeps_what_is_the_same() {
    let (a, b) = (Server::new("a"), Server::new("b"));
    let apart = |id: &str| ProcessGroup {
        id: format!("of {id}"),
        swap: true,
        exclusive: false,
        persistent: true,
        members: vec![id.into()],
    };
    let settings = octet_config::ProcessSettings { groups: vec![apart("a"), apart("b")], ..settings() };
    let all = Processes::with(vec![a.entry(), b.entry()], &settings, fast()).unwrap();
    let (one, two) = (all.lease("a").await.unwrap(), all.lease("b").await.unwrap());
    let (first, second) = (pid_of(one.base_url()), pid_of(two.base_url()));
    let mut changed = b.entry();
    changed.ttl = Some(Duration::from_secs(9));
    let mut moved = a.entry();
    moved.span.line += 5;
    all.reload(vec![moved, changed], &settings).unwrap();
    assert_eq!(pid_of(all.lease("a").await.unwrap().base_url()), first);
    assert!(alive(second), "its request goes on");
    // The new entry may not run beside the old one of the same group, and waits for it.
    let waits = tokio::spawn({
        let all = all.clone();
        async move { all.lease("b").await.map(|l| pid_of(l.base_url())) }
    });
    soon(|| all.status().iter().any(|s| s.id == "b" && s.waiting == 1)).await;
    assert!(!waits.is_finished() && alive(second));
    drop(two);
    assert_ne!(waits.await.unwrap().unwrap(), second);
    assert!(!alive(second) && alive(first));
    all.reload(vec![], &settings).unwrap();
    assert_eq!(all.lease("b").await.unwrap_err(), Error::Unknown("b".into()));
    drop(one);
    soon(|| all.status().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_processes_stop_with_octet() {
    let all = processes(vec![Server::new("a").mode("family").entry()]);
    let lease = all.lease("a").await.unwrap();
    let pids = crate::common::pids(&get(lease.base_url(), "/pids").unwrap());
    all.shutdown().await;
    assert!(!alive(pids[0]));
    // What it started was killed with it, and is not waited for.
    soon(|| pids.iter().all(|p| !alive(*p))).await;
    assert_eq!(all.lease("a").await.unwrap_err(), Error::Ending("a".into()));

    let all = processes(vec![Server::new("a").mode("family").entry()]);
    let lease = all.lease("a").await.unwrap();
    let pids = crate::common::pids(&get(lease.base_url(), "/pids").unwrap());
    drop(lease);
    drop(all);
    soon(|| pids.iter().all(|p| !alive(*p))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_processes_stop_when_octet_is_killed() {
    use std::io::BufRead;
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_servers::host", "--nocapture"])
        .env("OCTET_TEST_HOST", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(host.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|l| l.contains("pids ")).expect("the host says so");
    let pids = crate::common::pids(line.split("pids ").nth(1).unwrap());
    assert!(pids.len() == 2 && pids.iter().all(|p| alive(*p)));
    host.kill().unwrap();
    host.wait().unwrap();
    soon(|| pids.iter().all(|p| !alive(*p))).await;
}

#[test]
fn a_runtime_is_needed() {
    assert_eq!(Processes::new(vec![], &settings()).unwrap_err(), Error::NoRuntime);
}
