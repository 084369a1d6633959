//! A server that lies: wrong types, absurd times and counts, spoiled bytes, silence. Whoever asks it is answered in words, within
//! a bound of time and memory, and nothing panics.

mod answers;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use answers::{HANG, MEMORY_MAX_KIB, in_words, memory_kib, note_panics, panics};
use lockkeeper::spi::Clock;
use lockkeeper_torture::{Dice, Trouble};

const SEED: u64 = 20_261_118;
/// How many servers lie for each store, each in its own way.
const LIARS: u64 = 10;
/// A connection hears so many answers, and no more.
const ANSWERS_MAX: usize = 60;

/// What servers of one kind say: first, if they begin, and then.
struct Tongue {
    url: &'static str,
    greeting: &'static [u8],
    answers: &'static [&'static [u8]],
}

const REDIS: &[&[u8]] = &[
    b"+OK\r\n",
    b":1\r\n",
    b":-9223372036854775808\r\n",
    b"$5\r\nhello\r\n",
    b"$-1\r\n",
    b"*3\r\n:1\r\n:2\r\n:3\r\n",
    b"*4\r\n$4\r\nheld\r\n:9223372036854775807\r\n:-1\r\n:0\r\n",
    b"*2147483647\r\n",
    b"$536870911\r\nx",
    b"-ERR no\r\n",
    b"-NOSCRIPT none\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-LOADING later\r\n",
    b"%1\r\n+server\r\n+redis\r\n",
    b">3\r\n+message\r\n+a\r\n+b\r\n",
    b"*-5\r\n",
    b"+\xff\xfe\r\n",
];

const POSTGRES: &[&[u8]] = &[
    b"R\0\0\0\x08\0\0\0\0",
    b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x02Z\0\0\0\x05I",
    b"Z\0\0\0\x05I",
    b"E\0\0\0\x16SERROR\0C57P01\0Mno\0\0",
    b"D\0\0\0\x0a\x7f\xff\xff\xff\xff\xff",
    b"R\x7f\xff\xff\xff",
    b"R\xff\xff\xff\xff",
    b"1\0\0\0\x04t\0\0\0\x06\0\0n\0\0\0\x04Z\0\0\0\x05I",
    b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I",
];

const MYSQL_GREETING: &[u8] =
    b"\x4a\0\0\0\x0a8.0.0\0\x01\0\0\0saltsalt\0\xff\xf7\x21\x02\0\xff\x81\x15\0\0\0\0\0\0\0\0\0\0\
    saltsaltsalt\0mysql_native_password\0";

const MYSQL: &[&[u8]] = &[
    b"\x07\0\0\x02\0\0\0\x02\0\0\0",
    b"\x09\0\0\x01\xff\x15\x04#28000no",
    b"\x01\0\0\x01\xfe",
    b"\x09\0\0\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\0x",
    b"\x01\0\0\x01\x03",
    b"\0\0\0\x01",
];

const ZOOKEEPER: &[&[u8]] = &[
    b"\0\0\0\x25\0\0\0\0\0\0\x0f\xa0\0\0\0\0\0\0\0\x01\0\0\0\x10pppppppppppppppp\0",
    b"\0\0\0\x25\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\x10pppppppppppppppp\0",
    b"\0\0\0\x10\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0",
    b"\0\0\0\x10\xff\xff\xff\xfe\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",
    b"\0\0\0\x14\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\x7f\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
];

const ETCD: &[&[u8]] = &[
    b"\0\0\0\x04\0\0\0\0\0",
    b"\0\0\0\x04\x01\0\0\0\0",
    b"\0\0\x01\x01\x05\0\0\0\x01\x88",
    b"\0\0\x05\0\x01\0\0\0\x01\0\xff\xff\xff\xff",
    b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\0\0\0\0\0\x01",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
];

const TONGUES: &[Tongue] = &[
    Tongue { url: "redis://@?timeout=200ms", greeting: b"", answers: REDIS },
    Tongue { url: "redis+cluster://@?timeout=200ms", greeting: b"", answers: REDIS },
    Tongue { url: "postgres://u@@/d?timeout=200ms", greeting: b"", answers: POSTGRES },
    Tongue { url: "mysql://u@@/d?timeout=200ms", greeting: MYSQL_GREETING, answers: MYSQL },
    Tongue { url: "etcd://@?timeout=200ms", greeting: b"", answers: ETCD },
    Tongue { url: "zookeeper://@/locks?timeout=200ms", greeting: b"", answers: ZOOKEEPER },
];

/// A good answer, or one with some damage.
fn lie(good: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = good.to_vec();
    match dice.below(6) {
        0 => bytes.truncate(dice.index(bytes.len() + 1)),
        1 if !bytes.is_empty() => {
            let at = dice.index(bytes.len());
            bytes[at] = dice.draw().to_le_bytes()[0];
        }
        2 => bytes.extend_from_within(..),
        _ => {}
    }
    bytes
}

/// Answer whatever is asked, until the other side has had enough.
fn serve(mut stream: TcpStream, tongue: &Tongue, mut dice: Dice) -> std::io::Result<()> {
    stream.set_read_timeout(Some(HANG))?;
    if !tongue.greeting.is_empty() {
        // Mostly sound, or nobody would get any further.
        let sound = dice.below(4) != 0;
        stream.write_all(&if sound { tongue.greeting.to_vec() } else { lie(tongue.greeting, &mut dice) })?;
    }
    let mut asked = [0; 4096];
    for _ in 0..ANSWERS_MAX {
        if stream.read(&mut asked)? == 0 {
            return Ok(());
        }
        for _ in 0..=dice.index(3) {
            let good = tongue.answers[dice.index(tongue.answers.len())];
            stream.write_all(&lie(good, &mut dice))?;
        }
    }
    Ok(())
}

/// A server of this tongue, which lives as long as the process.
fn liar(tongue: &'static Tongue, seed: u64) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for (number, stream) in (0_u64..).zip(listener.incoming().flatten()) {
            let dice = Dice::seeded(seed ^ (number << 32));
            // Whoever was lied to may hang up in the middle of a word.
            std::thread::spawn(move || drop(serve(stream, tongue, dice)));
        }
    });
    // The place of the address is the last sign of its kind.
    let (before, after) = tongue.url.rsplit_once('@').unwrap_or((tongue.url, ""));
    Ok(format!("{before}{address}{after}"))
}

/// Everything that a user would ask. A lie may well be a grant: who believes a server cannot know better.
async fn ask(url: &str) -> Result<(), String> {
    let Some(locker) = in_words(lockkeeper::connect(url).await)? else { return Ok(()) };
    let wait = Duration::from_millis(100);
    drop(in_words(locker.try_lock("a").await)?);
    drop(in_words(locker.lock("a").wait_at_most(wait).await)?);
    drop(in_words(locker.read("b").wait_at_most(wait).await)?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_server_says_everybody_is_answered_in_words() -> Result<(), Trouble> {
    note_panics();
    let clock = Clock::boot();
    let until = clock.now().after(HANG);
    let mut asked = Vec::new();
    for tongue in TONGUES {
        for number in 0..LIARS {
            let url = liar(tongue, SEED + number)?;
            let clock = clock.clone();
            let name = format!("{} by liar {number}", tongue.url);
            asked.push(tokio::spawn(async move {
                match clock.within(until, Box::pin(ask(&url))).await {
                    None => Some(format!("{name}: no answer")),
                    Some(answer) => answer.err().map(|it| format!("{name}: {it}")),
                }
            }));
        }
    }
    let mut wrong = Vec::new();
    for it in asked {
        wrong.extend(it.await?);
    }
    wrong.extend(panics());
    if memory_kib().is_some_and(|it| MEMORY_MAX_KIB < it) {
        wrong.push(format!("{:?} KiB were used", memory_kib()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}").into()) }
}
