//! Hostile bytes over HTTP: good requests, spoiled by a seed and said over a socket. Whatever arrives is answered or hung up
//! on; nothing panics, and nothing stays held.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write as _;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Server, within};
use lockkeeper_core::Clock;
use lockkeeper_serve::Serve;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

const SEED: u64 = 20_261_119;
/// How often each good request is spoiled.
const TIMES: usize = 16;

/// Method, path, further lines of the head, body. A chunked body is written as it goes over the wire.
const GOOD: &[(&str, &str, &str, &str)] = &[
    ("GET", "/v1/locks", "", ""),
    ("GET", "/v1/locks?prefix=a%2F", "", ""),
    ("GET", "/v1/locks/a%2Fb", "", ""),
    ("POST", "/v1/locks/a%20b?wait=0s&ttl=60s&max_hold=1m&note=x%0Ay", "", ""),
    ("POST", "/v1/locks/b/c?shared=true&wait=20ms", "", ""),
    ("POST", "/v1/locks/c?permits=2/5&wait=0", "", ""),
    ("POST", "/v1/locks/d?also=e&also=f%2Fg&wait=0s", "", ""),
    ("POST", "/v1/locks/h", JSON, r#"{"note":"by body","shared":true,"wait":"0s","ttl":"30s"}"#),
    ("POST", "/v1/locks/i", CHUNKED, "e\r\n{\"wait\":\"0s\",\r\n7\r\n\"ttl\":\"\r\n5\r\n30s\"}\r\n0\r\n\r\n"),
    ("POST", "/v1/tokens", JSON, r#"{"name":"t","wait":"0s","ttl":"1s","permits":"1/3"}"#),
    ("POST", "/v1/tokens?name=u&wait=0s&ttl=1s&also=v", "", ""),
    ("GET", "/v1/tokens/AAAA-BBBB-CCCC", "", ""),
    ("POST", "/v1/tokens/AAAA-BBBB-CCCC", "", ""),
    ("DELETE", "/v1/tokens/AAAA-BBBB-CCCC", "", ""),
    ("GET", "/v1/leaders/l", "", ""),
    ("POST", "/v1/leaders/l?value=me&wait=0s&ttl=2s&note=n", "", ""),
    ("POST", "/v1/break/b%2Fc", JSON, r#"{"fence":"17"}"#),
    ("GET", "/health?store=true", "", ""),
    ("GET", "/locks/%3Cscript%3E?prefix=%F0%9F%94%92", "Accept: text/html\r\n", ""),
    ("GET", "/assets/console.css", "If-None-Match: \"x\"\r\nRange: bytes=0-3\r\n", ""),
    ("POST", "/login", "Content-Type: application/x-www-form-urlencoded\r\n", "token=a-token-of-the-tests"),
    ("OPTIONS", "/v1/locks/a", "Origin: http://elsewhere\r\nExpect: 100-continue\r\n", ""),
];
const JSON: &str = "Content-Type: application/json\r\n";
const CHUNKED: &str = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";

const SOON: Duration = Duration::from_millis(50);

/// Parts that parsers stumble over.
const ODD: &[&str] = &[
    "%",
    "%0",
    "%00",
    "%ff",
    "%2e%2e%2f",
    "?",
    "&&",
    "=",
    "#",
    "/",
    "//",
    "..",
    "\0",
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\t",
    " ",
    ":",
    ",",
    "{",
    "}",
    "[[[[",
    "\"",
    "\\u0000",
    "\\",
    "null",
    "-1",
    "0",
    "18446744073709551616",
    "1e999",
    "NaN",
    "584542046090years",
    "HTTP/9.9",
    "Content-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: elsewhere\r\n",
    "ffffffffffffffff\r\n",
    "\u{202e}",
    "\u{1f512}",
    "é",
];

/// Whatever panicked, on whichever thread.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    std::panic::set_hook(Box::new(|it| {
        let _ = writeln!(std::io::stderr(), "{it}");
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(it.to_string());
    }));
}

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // Splitmix: every state leads to another, and near ones to far ones.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % (bound as u64)).unwrap()
    }
}

/// The same with some damage: parts cut out, doubled, changed, or put in.
fn spoiled(good: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len() + 1);
        let end = (at + dice.below(8)).min(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            3 if at < bytes.len() => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            4 => {
                let long = vec![b'9'; dice.below(70_000)];
                bytes.splice(at..at, long);
            }
            _ => {
                let odd = ODD[dice.below(ODD.len())].bytes();
                bytes.splice(at..at, odd);
            }
        }
    }
    bytes
}

/// One of three parts is spoiled: the first line, the rest of the head, the body. So that not all are refused for their host
/// or token.
fn request(server: &Server, at: usize, round: usize, dice: &mut Dice) -> Vec<u8> {
    let (method, path, lines, body) = GOOD[at];
    let head = server.head(method, path);
    let (first, rest) = head.split_once("\r\n").unwrap();
    let length = if lines == CHUNKED { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut parts =
        [first.as_bytes().to_vec(), format!("\r\n{rest}{lines}{length}\r\n").into_bytes(), body.into()];
    if 0 < round {
        let which = [0, 0, 1, 2][dice.below(4)];
        parts[which] = spoiled(&parts[which], dice);
    }
    parts.concat()
}

/// Say these bytes: the status of the answer, or nothing if it hung up. Whoever is not answered soon says that this was all,
/// because a request that was cut short is waited for.
async fn say(server: &Server, bytes: &[u8]) -> Option<u16> {
    let (read, mut write) = server.connect().await.into_split();
    // Whoever is hung up on half-way cannot say the rest.
    let _ = write.write_all(bytes).await;
    let mut line = Vec::new();
    let mut reader = BufReader::new(read);
    let answered = async {
        let mut heard = pin!(reader.read_until(b'\n', &mut line));
        tokio::select! {
            heard = &mut heard => return heard,
            () = Clock::boot().sleep(SOON) => {}
        }
        let _ = write.shutdown().await;
        heard.await
    };
    let heard = within("an answer or a hang-up", answered).await;
    if heard.is_err() || line.is_empty() {
        return None;
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    let status = line.strip_prefix("HTTP/1.").and_then(|it| it.split(' ').nth(1)?.parse().ok());
    Some(
        status.unwrap_or_else(|| {
            panic!("this is no answer: {line:?} to {:.300}", String::from_utf8_lossy(bytes))
        }),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_said_is_answered_and_nothing_stays_held() {
    note_panics();
    let server = Server::with("memory:", |it| it, |it| Serve::allow_break(it.allow_locks())).await;
    let (mut dice, mut answers) = (Dice(SEED), [0; 6]);
    for at in 0..GOOD.len() {
        for round in 0..TIMES {
            let bytes = request(&server, at, round, &mut dice);
            let status = say(&server, &bytes).await;
            let told = || format!("{status:?} to {:.300}", format!("{:?}", String::from_utf8_lossy(&bytes)));
            assert!(status.is_none_or(|it| (100..600).contains(&it)), "{}", told());
            assert!(PANICS.lock().unwrap().is_empty(), "{:?}: {}", PANICS.lock().unwrap(), told());
            // What is sound is understood; on a busy machine a stream may be hung up on before it begins.
            assert!(0 < round || status.is_none_or(|it| it < 500), "{}", told());
            answers[status.map_or(0, |it| usize::from(it / 100))] += 1;
        }
    }
    let [hung_up, _, fine, _, refused, _] = answers;
    assert!(GOOD.len() < fine && GOOD.len() < refused && hung_up < fine + refused, "{answers:?}");
    // It still serves, and takes with it what it held for those who may come back.
    server.lock("afterwards").await;
    let inspect = server.inspect.clone();
    server.ends().await;
    let left = inspect.list("").await.unwrap();
    assert!(left.iter().all(lockkeeper::spi::LockInfo::is_free), "{left:?}");
    assert!(PANICS.lock().unwrap().is_empty(), "{:?}", PANICS.lock().unwrap());
}
