//! A Redis server, over one connection that all requests share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use octet_config::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
};

/// Maximum time that a request waits for Redis: a slow cache is worse than none.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How long Redis is skipped after a failure.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Number of names per scan.
const SCAN_MANY: usize = 500;

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    client: Client,
    state: Mutex<State>,
    /// Held by the request that connects.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// After a failure, the time until which it is skipped.
    resting_until: Option<Instant>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("resting_until", &self.resting_until).finish_non_exhaustive()
    }
}

/// Why an operation failed; `None` if that was reported already.
pub type Failed = Option<String>;

impl Redis {
    /// The configured server. Connects at the first request.
    ///
    /// # Errors
    /// What is wrong with its address.
    pub fn new(server: &RedisServer) -> Result<Self, String> {
        // The client's error may contain the URL with its password.
        let wrong = |_| {
            "the address of Redis cannot be understood; it is like redis://:PASSWORD@HOST:6379/0".to_string()
        };
        let client = Client::open(info(server).map_err(wrong)?).map_err(wrong)?;
        Ok(Self { client, state: Mutex::default(), connecting: tokio::sync::Mutex::default() })
    }

    /// The value, up to `bytes_max` and one more byte.
    pub async fn get(&self, key: &str, bytes_max: usize) -> Result<Option<Bytes>, Failed> {
        // The range limits what is read, whoever wrote it; a missing value is empty.
        let mut command = redis::cmd("GETRANGE");
        command.arg(key).arg(0).arg(bytes_max);
        let value: Vec<u8> = self.ask(&command).await?;
        Ok((!value.is_empty()).then(|| value.into()))
    }

    /// Stores a value.
    pub async fn put(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), Failed> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value).arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1));
        self.ask(&command).await
    }

    /// Whether it answers.
    pub async fn ping(&self) -> Result<(), Failed> {
        self.ask::<String>(&redis::cmd("PING")).await.map(drop)
    }

    /// Deletes these names.
    pub async fn delete(&self, names: &[String]) -> Result<(), Failed> {
        for some in names.chunks(SCAN_MANY) {
            let mut command = redis::cmd("UNLINK");
            command.arg(some);
            self.ask::<u64>(&command).await?;
        }
        Ok(())
    }

    /// Deletes entries whose name is `is_ours` and whose value begins with `magic`: other programs may have data there, too.
    pub async fn clear(&self, is_ours: impl Fn(&str) -> bool, magic: &[u8]) -> Result<(), Failed> {
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("COUNT").arg(SCAN_MANY);
            let (next, names): (u64, Vec<Vec<u8>>) = self.ask(&command).await?;
            let mut names: Vec<String> =
                names.into_iter().filter_map(|n| String::from_utf8(n).ok()).collect();
            names.retain(|name| is_ours(name));
            let mut ours = Vec::new();
            for name in names {
                let mut command = redis::cmd("GETRANGE");
                command.arg(&name).arg(0).arg(magic.len().saturating_sub(1));
                match self.query::<Vec<u8>>(&command).await? {
                    Ok(begins) if begins == magic => ours.push(name),
                    Ok(_) => {}
                    // A value that is not a string belongs to another program.
                    Err(e) if e.code() == Some("WRONGTYPE") => {}
                    Err(e) => return Err(Some(e.to_string())),
                }
            }
            self.delete(&ours).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// The server's reports about itself and its clients.
    pub async fn info(&self) -> Result<(String, String), Failed> {
        let info = self.ask(&redis::cmd("INFO")).await?;
        let mut clients = redis::cmd("CLIENT");
        clients.arg("LIST");
        Ok((info, self.ask(&clients).await?))
    }

    /// Runs a script, which Redis does as one step. A script that fails is a failure of the server.
    pub async fn eval<T: redis::FromRedisValue>(
        &self,
        script: &str,
        keys: &[String],
        args: &[String],
    ) -> Result<T, Failed> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        self.query(&command).await?.map_err(|e| self.rest(e.to_string()))
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Failed> {
        self.query(command).await?.map_err(|e| Some(e.to_string()))
    }

    /// The server's answer, which may be an error.
    async fn query<T: redis::FromRedisValue>(
        &self,
        command: &redis::Cmd,
    ) -> Result<redis::RedisResult<T>, Failed> {
        let answer = tokio::time::timeout(ANSWER_WITHIN, async {
            let mut connection = self.connection().await?;
            match command.query_async(&mut connection).await {
                // An error about one value or command says nothing about the connection.
                Err(e) if e.is_io_error() || e.is_timeout() || e.is_connection_dropped() => {
                    Err(self.rest(e.to_string()))
                }
                answer => Ok(answer),
            }
        });
        answer
            .await
            .unwrap_or_else(|_| Err(self.rest(format!("no answer within {} ms", ANSWER_WITHIN.as_millis()))))
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Failed> {
        if let Some(known) = self.known()? {
            return Ok(known);
        }
        let _one = self.connecting.lock().await;
        if let Some(known) = self.known()? {
            return Ok(known);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let made = made.map_err(|e| self.rest(e.to_string()))?;
        self.state().connection = Some(made.clone());
        Ok(made)
    }

    /// The connection, if there is one; an error during a pause.
    fn known(&self) -> Result<Option<MultiplexedConnection>, Failed> {
        let mut state = self.state();
        match state.resting_until {
            Some(until) if Instant::now() < until => Err(None),
            _ => {
                state.resting_until = None;
                Ok(state.connection.clone())
            }
        }
    }

    /// Records a failure. Returns the reason to the first caller only.
    fn rest(&self, why: String) -> Failed {
        let mut state = self.state();
        state.connection = None;
        let is_first = state.resting_until.is_none_or(|until| until <= Instant::now());
        state.resting_until = Some(Instant::now() + RETRY_AFTER);
        is_first.then_some(why)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn info(server: &RedisServer) -> redis::RedisResult<ConnectionInfo> {
    if let Some(url) = &server.url {
        return url.expose().into_connection_info();
    }
    let (host, port) = (server.host.clone(), server.port);
    let addr = if server.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut login = RedisConnectionInfo::default().set_db(server.db);
    if let Some(name) = &server.username {
        login = login.set_username(name);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password.expose());
    }
    Ok(addr.into_connection_info()?.set_redis_settings(login))
}
