//! The proxy does to connections what its rules say, and nothing else.

use std::io::ErrorKind;
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_servers::proxy::{BlackHole, Direction, Proxy, Rule};
use lockkeeper_servers::{Redis, RedisOptions, RespClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Long enough to notice what should not come; no test waits for it to see what should.
const MOMENT: Duration = Duration::from_millis(50);

/// A proxy before a server that the test itself plays.
struct Stage {
    proxy: Proxy,
    listener: TcpListener,
}

impl Stage {
    async fn set() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let proxy = Proxy::start(port).await.expect("a proxy");
        Stage { proxy, listener }
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.proxy.address()).await.expect("the proxy listens")
    }

    /// Both ends of a connection through the proxy.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = self.dial().await;
        let (server, _) = self.listener.accept().await.expect("the proxy dials");
        (client, server)
    }
}

async fn receive(stream: &mut TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.expect("the bytes arrive");
    String::from_utf8(bytes).expect("text")
}

async fn pass(from: &mut TcpStream, to: &mut TcpStream, text: &str) {
    from.write_all(text.as_bytes()).await.expect("open");
    assert_eq!(receive(to, text.len()).await, text);
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::select! {
        _ = stream.read(&mut byte) => false,
        () = Clock::boot().sleep(MOMENT) => true,
    }
}

/// Whether who dials here gets neither a connection nor a refusal.
async fn is_unanswered(address: &str) -> bool {
    tokio::select! {
        _ = TcpStream::connect(address) => false,
        () = Clock::boot().sleep(MOMENT) => true,
    }
}

/// What is said on the next so many connections until they end. It is answered, and nobody who asked before may hear it.
async fn hear_all(stage: &Stage, count: usize) -> Vec<String> {
    let mut heard = Vec::new();
    for _ in 0..count {
        let (mut again, _) = stage.listener.accept().await.expect("the proxy dials");
        again.write_all(b"unasked").await.expect("open");
        let mut text = String::new();
        again.read_to_string(&mut text).await.expect("it hangs up in good order");
        heard.push(text);
    }
    heard.sort();
    heard
}

async fn end_of(stream: &mut TcpStream) -> ErrorKind {
    stream.read_u8().await.expect_err("the connection ends").kind()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_are_counted() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "request").await;
    pass(&mut server, &mut client, "answer!!").await;
    let seen = stage.proxy.wait_for(|it| it.to_client == 8).await.unwrap();
    assert_eq!((seen.accepted, seen.open, seen.to_server, seen.cut), (1, 1, 7, 0));
    drop(client);
    assert_eq!(end_of(&mut server).await, ErrorKind::UnexpectedEof);
    drop(server);
    stage.proxy.wait_for(|it| it.open == 0 && it.cut == 0).await.unwrap();
}

#[tokio::test]
async fn what_is_answered_is_counted_once_however_it_was_said() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    let count = || stage.proxy.counters().round_trips;
    pass(&mut server, &mut client, "hello").await;
    assert_eq!(count(), 0, "a greeting answers nothing");
    pass(&mut client, &mut server, "one").await;
    pass(&mut client, &mut server, "and another").await;
    assert_eq!(count(), 0, "not answered yet");
    pass(&mut server, &mut client, "first").await;
    pass(&mut server, &mut client, "second").await;
    assert_eq!(count(), 1, "asked together");
    pass(&mut client, &mut server, "more").await;
    pass(&mut server, &mut client, "third").await;
    pass(&mut client, &mut server, "good-bye").await;
    assert_eq!(count(), 2);
}

#[tokio::test]
async fn one_side_may_close_its_half_and_still_be_answered() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    client.shutdown().await.unwrap();
    assert_eq!(end_of(&mut server).await, ErrorKind::UnexpectedEof);
    pass(&mut server, &mut client, "late answer").await;
}

#[tokio::test]
async fn a_delay_holds_bytes_back_for_its_span_and_keeps_their_order() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    let span = Duration::from_millis(80);
    stage.proxy.set(Direction::ToServer, Rule::Delay(span));
    let (clock, mut sent) = (Clock::boot(), String::new());
    let start = clock.now();
    for part in 0..100 {
        let part = format!("part {part} ");
        client.write_all(part.as_bytes()).await.unwrap();
        sent.push_str(&part);
    }
    assert_eq!(receive(&mut server, sent.len()).await, sent);
    assert!(clock.now() - start >= span);
    // The other direction has its own rule; a shorter delay also frees what waits already.
    pass(&mut server, &mut client, "at once").await;
    stage.proxy.set(Direction::ToServer, Rule::Delay(Duration::from_secs(3600)));
    client.write_all(b"waits").await.unwrap();
    assert!(is_silent(&mut server).await);
    stage.proxy.set(Direction::ToServer, Rule::Pass);
    assert_eq!(receive(&mut server, 5).await, "waits");
}

#[tokio::test]
async fn held_bytes_arrive_when_the_rule_changes() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.set_both(Rule::Hold);
    client.write_all(b"held").await.unwrap();
    assert!(is_silent(&mut server).await);
    assert_eq!(stage.proxy.counters().to_server, 0);
    stage.proxy.set_both(Rule::Pass);
    assert_eq!(receive(&mut server, 4).await, "held");
}

#[tokio::test]
async fn a_held_direction_hides_that_the_peer_has_gone() {
    let stage = Stage::set().await;
    let (client, mut server) = stage.connect().await;
    stage.proxy.set(Direction::ToServer, Rule::Hold);
    client.set_zero_linger().unwrap();
    drop(client);
    server.write_all(b"to nobody").await.unwrap();
    assert!(is_silent(&mut server).await);
    stage.proxy.set(Direction::ToServer, Rule::Pass);
    assert_eq!(end_of(&mut server).await, ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connection_that_lost_bytes_stays_mute_and_a_new_one_is_whole() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.set(Direction::ToServer, Rule::Drop);
    client.write_all(b"lost").await.unwrap();
    stage.proxy.wait_for(|it| it.dropped == 4).await.unwrap();
    stage.proxy.set(Direction::ToServer, Rule::Pass);
    client.write_all(b"also lost").await.unwrap();
    let seen = stage.proxy.wait_for(|it| it.dropped == 13).await.unwrap();
    assert_eq!(seen.to_server, 0);
    // Half open: the other direction works, and the server never learns that the client left.
    pass(&mut server, &mut client, "still here").await;
    drop(client);
    assert!(is_silent(&mut server).await);
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "whole").await;
}

#[tokio::test]
async fn a_cut_resets_both_ends_of_every_open_connection() {
    let stage = Stage::set().await;
    let (mut one, mut two) = (stage.connect().await, stage.connect().await);
    stage.proxy.cut();
    for (client, server) in [&mut one, &mut two] {
        assert_eq!(end_of(client).await, ErrorKind::ConnectionReset);
        assert_eq!(end_of(server).await, ErrorKind::ConnectionReset);
    }
    let seen = stage.proxy.wait_for(|it| it.open == 0).await.unwrap();
    assert_eq!((seen.cut, seen.accepted), (2, 2));
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "a new one").await;
}

#[tokio::test]
async fn a_cut_after_some_bytes_lets_exactly_those_through() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.set(Direction::ToServer, Rule::CutAfter(6));
    pass(&mut client, &mut server, "abcd").await;
    client.write_all(b"efgh").await.unwrap();
    assert_eq!(receive(&mut server, 2).await, "ef");
    assert_eq!(end_of(&mut server).await, ErrorKind::ConnectionReset);
    assert_eq!(end_of(&mut client).await, ErrorKind::ConnectionReset);
    let seen = stage.proxy.wait_for(|it| it.cut == 1).await.unwrap();
    assert_eq!(seen.to_server, 6);
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "the rule has done its work").await;
}

#[tokio::test]
async fn a_lost_reply_was_executed_and_a_lost_request_was_not() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let proxy = Proxy::start(redis.port()).await.unwrap();
    let count = async || redis.command(&["GET", "count"]).await.unwrap().int();
    let mut client = RespClient::connect(proxy.port()).await.unwrap();

    proxy.lose_reply(b"INCR");
    assert!(client.command(&["PING"]).await.is_ok(), "not the command that was named");
    assert!(client.command(&["INCR", "count"]).await.is_err());
    assert_eq!(count().await, Some(1));

    let mut client = RespClient::connect(proxy.port()).await.unwrap();
    proxy.lose_request(b"");
    assert!(client.command(&["INCR", "count"]).await.is_err());
    assert_eq!(count().await, Some(1));

    let mut client = RespClient::connect(proxy.port()).await.unwrap();
    assert!(client.command(&["INCR", "count"]).await.is_ok(), "each trap springs once");
    assert_eq!(proxy.wait_for(|it| it.cut == 2).await.unwrap().accepted, 3);
}

#[tokio::test]
async fn a_request_that_is_kept_back_is_overtaken_and_arrives_though_its_client_has_gone() {
    let stage = Stage::set().await;
    let (mut slow, mut slow_server) = stage.connect().await;
    let (mut quick, mut quick_server) = stage.connect().await;
    stage.proxy.keep_request(b"take");
    pass(&mut slow, &mut slow_server, "hello").await;
    slow.write_all(b"take").await.unwrap();
    stage.proxy.wait_for(|it| it.kept == 1).await.unwrap();
    drop(slow);
    pass(&mut quick, &mut quick_server, "take").await;
    assert!(is_silent(&mut slow_server).await);
    stage.proxy.let_go();
    assert_eq!(receive(&mut slow_server, 4).await, "take");
    assert_eq!(end_of(&mut slow_server).await, ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_closed_proxy_refuses_new_connections_and_keeps_open_ones() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.refuse().await.unwrap();
    let refused = TcpStream::connect(stage.proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    pass(&mut client, &mut server, "still open").await;
    stage.proxy.accept().await.unwrap();
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "open again").await;
}

#[tokio::test]
async fn a_connection_that_was_idle_is_forgotten_without_a_word_and_a_new_one_works() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    let (mut other, mut other_server) = stage.connect().await;
    pass(&mut client, &mut server, "known").await;
    stage.proxy.forget_idle(Some(MOMENT));
    stage.proxy.wait_for(|it| it.forgotten == 2).await.unwrap();
    client.write_all(b"request").await.unwrap();
    other_server.write_all(b"an answer that comes too late").await.unwrap();
    let seen = stage.proxy.wait_for(|it| it.dropped == 36).await.unwrap();
    assert_eq!((seen.open, seen.to_server, seen.to_client, seen.cut), (2, 5, 0, 0));
    assert!(is_silent(&mut server).await && is_silent(&mut other).await, "nothing passes");
    // Nor does the end of a connection, and what is forgotten is not remembered.
    stage.proxy.forget_idle(None);
    drop((client, other_server));
    assert!(is_silent(&mut server).await && is_silent(&mut other).await, "neither end learns of it");
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "a new one").await;
    pass(&mut server, &mut client, "works").await;
}

#[tokio::test]
async fn a_connection_on_which_something_is_said_is_not_forgotten() {
    let stage = Stage::set().await;
    let (idle, _idle_server) = stage.connect().await;
    let (mut client, mut server) = stage.connect().await;
    let span = Duration::from_secs(2);
    stage.proxy.forget_idle(Some(span));
    // In either direction: each of them alone is silent for longer than the span.
    while stage.proxy.counters().forgotten == 0 {
        pass(&mut client, &mut server, "ping").await;
        pass(&mut server, &mut client, "pong").await;
        assert!(is_silent(&mut client).await);
    }
    pass(&mut client, &mut server, "ping").await;
    assert_eq!(stage.proxy.counters().forgotten, 1);
    drop(idle);
}

#[tokio::test]
async fn a_proxy_that_vanished_neither_takes_nor_refuses_and_comes_back() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.vanish().await.unwrap();
    client.write_all(b"lost").await.unwrap();
    stage.proxy.wait_for(|it| it.dropped == 4).await.unwrap();
    for _ in 0..3 {
        assert!(is_unanswered(&stage.proxy.address()).await);
    }
    drop(client);
    assert!(is_silent(&mut server).await);
    stage.proxy.appear().await.unwrap();
    let (mut client, mut server) = stage.connect().await;
    pass(&mut client, &mut server, "here again").await;
}

#[tokio::test]
async fn a_black_hole_takes_connections_or_not_and_never_answers() {
    let silent = BlackHole::silent().unwrap();
    for _ in 0..3 {
        let mut client = TcpStream::connect(silent.address()).await.unwrap();
        client.write_all(b"is anybody there?").await.unwrap();
        assert!(is_silent(&mut client).await);
    }
    let unreachable = BlackHole::unreachable().await.unwrap();
    for _ in 0..3 {
        assert!(is_unanswered(&unreachable.address()).await);
    }
    let port = unreachable.port();
    drop((silent, unreachable));
    let refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "a dropped one is gone");
}

#[tokio::test]
async fn new_connections_follow_a_redirect() {
    let (stage, other) = (Stage::set().await, Stage::set().await);
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.redirect(other.listener.local_addr().unwrap().port());
    let mut moved = stage.dial().await;
    let (mut elsewhere, _) = other.listener.accept().await.unwrap();
    pass(&mut moved, &mut elsewhere, "new").await;
    pass(&mut client, &mut server, "old").await;
}

#[tokio::test]
async fn a_server_that_is_down_looks_like_a_reset() {
    let stage = Stage::set().await;
    drop(stage.listener);
    let mut client = TcpStream::connect(stage.proxy.address()).await.unwrap();
    assert_eq!(end_of(&mut client).await, ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() {
    let stage = Stage::set().await;
    let (mut client, _server) = stage.connect().await;
    let address = stage.proxy.address();
    drop(stage.proxy);
    end_of(&mut client).await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn much_more_than_the_queue_holds_gets_through_a_delay() {
    let stage = Stage::set().await;
    let (mut client, mut server) = stage.connect().await;
    stage.proxy.set_both(Rule::Delay(Duration::from_millis(1)));
    let sent: Vec<u8> = (0..3_000_000_u32).map(|it| it.to_le_bytes()[(it % 4) as usize]).collect();
    let sending = sent.clone();
    let writer = tokio::spawn(async move {
        client.write_all(&sending).await?;
        client.shutdown().await
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap().unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

#[tokio::test]
async fn what_was_said_is_said_once_more_on_connections_of_its_own() {
    let stage = Stage::set().await;
    let (mut before, mut server_before) = stage.connect().await;
    pass(&mut before, &mut server_before, "kept by nobody").await;
    stage.proxy.record(Some(10));
    let ((mut one, mut server_one), (mut two, mut server_two)) =
        (stage.connect().await, stage.connect().await);
    pass(&mut one, &mut server_one, "one").await;
    pass(&mut server_one, &mut one, "an answer").await;
    pass(&mut one, &mut server_one, "more").await;
    pass(&mut two, &mut server_two, "longer than ten bytes").await;

    let repeat = stage.proxy.repeat();
    let (said, heard) = tokio::join!(repeat, hear_all(&stage, 2));
    assert_eq!(heard, ["longer tha", "onemore"]);
    assert_eq!((said, stage.proxy.counters().repeated), (17, 17));
    assert!(is_silent(&mut one).await && is_silent(&mut two).await);
    // The connections themselves go on, and so does the tape: it can be played again, until it is forgotten.
    pass(&mut one, &mut server_one, "!").await;
    let (said, heard) = tokio::join!(stage.proxy.repeat(), hear_all(&stage, 2));
    assert_eq!((said, heard), (18, vec!["longer tha".to_owned(), "onemore!".to_owned()]));
    stage.proxy.record(None);
    assert_eq!(stage.proxy.repeat().await, 0);
}

#[tokio::test]
async fn a_real_server_does_what_it_is_told_once_more() {
    let server = Redis::start(RedisOptions::default()).await.expect("a server");
    let proxy = Proxy::start(server.port()).await.expect("a proxy");
    proxy.record(Some(1 << 16));
    let mut client = RespClient::connect(proxy.port()).await.expect("open");
    for count in 1..=3 {
        assert_eq!(client.command(&["INCR", "counter"]).await.expect("an answer").int(), Some(count));
    }
    assert_ne!(proxy.repeat().await, 0);
    assert_eq!(client.command(&["GET", "counter"]).await.expect("an answer").text(), "6");
}
