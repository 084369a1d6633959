//! `lockkeeper 2pc` on real servers: what is in doubt is listed, recovered, resolved by hand and forgotten.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::typist::Typist;
use common::{Store, Talking, code, failed, text};
use lockkeeper::twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Participant, Point, TransactionId, TwoPhase};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use serde_json::Value;

struct Site {
    store: Store,
    postgres: Postgres,
    mariadb: MariaDb,
}

impl Site {
    async fn start() -> Self {
        let options = PostgresOptions::default().set("max_prepared_transactions", "10");
        let (postgres, mariadb) =
            tokio::join!(Postgres::start(options), MariaDb::start(MariaDbOptions::default()));
        let (store, postgres, mariadb) = (Store::new(), postgres.unwrap(), mariadb.unwrap());
        postgres.sql("CREATE TABLE move (id int)").await.unwrap();
        mariadb.sql("CREATE TABLE move (id int)").await.unwrap();
        Site { store, postgres, mariadb }
    }

    fn log(&self) -> String {
        format!("sqlite:{}", self.store.path("2pc.db").display())
    }

    fn participants(&self) -> String {
        format!("orders={} stock={}", self.postgres.url(), self.mariadb.url())
    }

    fn output(&self, args: &[&str]) -> std::process::Output {
        let mut command = self.store.lockkeeper(["2pc"].iter().chain(args));
        command.env("LOCKKEEPER_2PC_LOG", self.log()).env("LOCKKEEPER_2PC_PARTICIPANTS", self.participants());
        common::output(&mut command)
    }

    /// A person types this at a terminal when asked for the name. The code that the command then ends with.
    fn typed(&self, args: &str, name: &str, keys: &str) -> Option<i32> {
        let (log, participants) = (self.log(), self.participants());
        let place = format!("LOCKKEEPER_2PC_LOG='{log}' LOCKKEEPER_2PC_PARTICIPANTS='{participants}'");
        let mut person = Typist::sit_down(&self.store, &format!("{place} \"$LK\" 2pc {args}"));
        person.sees(&format!("Type {name} to go on: "));
        person.types(keys);
        person.code()
    }

    /// The log is lost.
    fn lose_the_log(&self) {
        for file in ["2pc.db", "2pc.db-wal", "2pc.db-shm"] {
            drop(std::fs::remove_file(self.store.path(file)));
        }
    }

    /// What it prints, if it ends with this code.
    fn said(&self, args: &[&str], expected: i32) -> String {
        let end = self.output(args);
        assert_eq!(code(&end), expected, "{args:?}: {end:?}");
        text(&end.stdout) + &text(&end.stderr)
    }

    fn json(&self, args: &[&str], expected: i32) -> Value {
        let end = self.output(args);
        assert_eq!(code(&end), expected, "{args:?}: {end:?}");
        serde_json::from_slice(&end.stdout).unwrap()
    }

    /// A coordinator that ends at this point, and the transaction that it leaves.
    async fn leave(&self, number: u32, at: Point) -> TransactionId {
        let locker = lockkeeper::connect(&self.store.url()).await.unwrap();
        let (sender, seen) = std::sync::mpsc::channel();
        let office = TwoPhase::open(&self.log(), &locker)
            .await
            .unwrap()
            .participant("orders", Participant::postgres(&self.postgres.url()).unwrap())
            .participant("stock", Participant::mysql(&self.mariadb.url()).unwrap())
            .observer(move |step| {
                if step.point == at {
                    sender.send(step.id.unwrap().clone()).unwrap();
                    panic!("the coordinator ends here, as it was told to");
                }
            })
            .start()
            .await
            .unwrap();
        let sql = format!("INSERT INTO move VALUES ({number})");
        let work = office.transaction().note(format!("move {number}"));
        let (first, second) = (sql.clone(), sql);
        let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&first).await?));
        let work = work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(second).await?));
        work.commit().await.unwrap_err();
        let id = seen.recv().unwrap();
        office.close().await.unwrap();
        id
    }

    /// The same with the orders alone: the stock is not named.
    fn of_orders(&self, args: &[&str]) -> std::process::Output {
        let some = format!("orders={}", self.postgres.url());
        let place = ["--log", &self.log(), "--participant", &some];
        common::output(&mut self.store.lockkeeper(["2pc"].iter().chain(args).chain(&place)))
    }

    async fn moves(&self, number: u32) -> (String, String) {
        let sql = format!("SELECT count(*) FROM move WHERE id = {number}");
        let (here, there) = (self.postgres.sql(&sql).await.unwrap(), self.mariadb.sql(&sql).await.unwrap());
        (here.trim().to_owned(), there.trim().to_owned())
    }
}

fn both(count: &str) -> (String, String) {
    (count.to_owned(), count.to_owned())
}

/// `lockkeeper serve` counts it, and its console tells the same, and what to type.
#[cfg(feature = "serve")]
fn console_shows(site: &Site, id: &TransactionId) {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let mut command = site.store.lockkeeper(["serve", "--listen", "127.0.0.1:0"]);
    command.env("LOCKKEEPER_2PC_LOG", site.log()).env("LOCKKEEPER_2PC_PARTICIPANTS", site.participants());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut told = |words: &str| {
        let line = said.find(|it| it.contains(words)).unwrap();
        line.split_once(words).unwrap().1.to_owned()
    };
    let (address, token) = (told("listening on http://"), told("the token is "));
    let ask = |path: &'static str| {
        let head = format!("Host: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}");
        let address = address.clone();
        common::within("the page", move || {
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).unwrap();
            page
        })
    };
    // The first who asks is a scraper: nobody has looked at a page yet.
    let metrics = ask("/metrics");
    for (line, times) in [
        ("lockkeeper_twophase_in_doubt{participant=\"orders\"} 1\n", 1),
        ("lockkeeper_twophase_in_doubt{participant=\"stock\"} 1\n", 1),
        ("lockkeeper_twophase_damaged{participant=\"stock\"} 0\n", 1),
        ("\nlockkeeper_twophase_in_doubt_age_max_seconds ", 1),
        (id.as_str(), 0),
    ] {
        assert_eq!(metrics.matches(line).count(), times, "{line}: {metrics}");
    }
    let page = ask("/two-phase");
    for words in [id.as_str(), "undecided", "nobody works on it", "stock</bdi>: <bdi>prepared", "2pc recover"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains(&site.postgres.url()), "no address of a participant: {page}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_doubt_is_listed_and_recovered() {
    let site = Site::start().await;
    failed(&common::output(&mut site.store.lockkeeper(["2pc", "ls"])), 64);
    let nowhere = site.output(&["ls", "--log", "sqlite:/proc/nowhere/2pc.db"]);
    assert!(failed(&nowhere, 69).contains("there is no log"));
    // Nor is anything said of a log whose seats nobody can look at.
    drop(TwoPhase::open(&site.log(), &lockkeeper::connect("memory:").await.unwrap()).await.unwrap());
    for command in [&["ls"][..], &["recover"], &["recover", "--json"]] {
        let blind = [command, &["--url", "postgres://nobody@127.0.0.1:1/none"]].concat();
        let end = site.output(&blind);
        failed(&end, 69);
        assert_eq!(text(&end.stdout), "", "{command:?}");
    }

    let decided = site.leave(1, Point::Decided).await;
    let undecided = site.leave(2, Point::AllPrepared).await;
    // The second office finished what the first left, and was itself left undone.
    assert_eq!(site.moves(1).await, both("1"), "whoever takes the seat finishes");
    let shown = site.json(&["show", "--json", decided.as_str()], 0);
    assert_eq!((&shown["verdict"], &shown["damages"]), (&Value::from("committed"), &Value::Array(vec![])));

    let list = site.json(&["ls", "--json"], 1);
    let [one] = &list["transactions"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(
        (&one["id"], &one["decided"], &one["seat_held"]),
        (&undecided.as_str().into(), &Value::Null, &false.into())
    );
    assert_eq!(one["branches"][0]["participant"], "orders");
    assert_eq!(one["branches"][1]["prepared"], true);
    #[cfg(feature = "serve")]
    console_shows(&site, &undecided);
    let table = site.said(&["ls"], 1);
    assert!(table.contains("undecided") && table.contains("stock: prepared"), "{table}");
    let plan = site.said(&["recover", "--dry-run"], 1);
    assert!(plan.contains(&format!("{undecided} is to be rolled back")), "{plan}");
    assert_eq!(site.json(&["recover", "--dry-run", "--json"], 1), list, "the same in JSON");
    assert_eq!(site.json(&["ls", "--json"], 1), list, "nothing was done");

    // A participant that is not named is named to the reader, and no branch of it is guessed.
    let half = site.of_orders(&["ls"]);
    assert!(text(&half.stderr).contains("--participant stock=URL"), "{half:?}");

    // While somebody holds the seat it is left to them.
    let locker = lockkeeper::connect(&site.store.url()).await.unwrap();
    let seat = locker.lock(format!("2pc/{}/0", undecided.log())).await.unwrap();
    let held = site.said(&["recover"], 75);
    assert!(held.contains("left to whoever holds its seat"), "{held}");
    failed(&site.output(&["resolve", undecided.as_str(), "--abort", "--yes"]), 75);
    seat.release().await.unwrap();

    assert!(site.said(&["recover"], 0).contains("nothing is left"));
    assert_eq!(site.moves(2).await, both("0"));
    assert!(site.said(&["ls"], 0).contains("no transaction is in doubt"));
    assert!(site.said(&["show", undecided.as_str()], 0).contains("verdict   aborted"));
    assert!(site.said(&["forget", decided.as_str()], 0).contains("is forgotten"));
    assert!(site.said(&["forget", decided.as_str()], 0).contains("no decision"));
    assert_eq!(site.json(&["show", "--json", decided.as_str()], 0)["verdict"], "unknown", "not: aborted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_may_decide_and_what_that_splits_is_kept_as_damage() {
    let site = Site::start().await;
    let undecided = site.leave(1, Point::AllPrepared).await;
    let id = undecided.as_str();
    // Nobody to ask is no agreement, and one must say which.
    assert!(failed(&site.output(&["resolve", id, "--commit"]), 64).contains("--yes"));
    failed(&site.output(&["resolve", id, "--yes"]), 64);
    failed(&site.output(&["resolve", "order-42", "--commit", "--yes"]), 64);
    failed(
        &site.output(&["resolve", "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq", "--commit", "--yes"]),
        64,
    );
    assert_eq!(site.moves(1).await, both("0"));
    site.said(&["resolve", id, "--commit", "--yes"], 0);
    assert_eq!(site.moves(1).await, both("1"));
    let nothing = site.json(&["recover", "--json"], 0);
    for list in ["transactions", "damages", "unreachable"] {
        assert_eq!(nothing[list], Value::Array(vec![]), "{nothing}");
    }

    let decided = site.leave(2, Point::Decided).await;
    let id = decided.as_str();
    assert!(failed(&site.output(&["forget", id, "--give-up"]), 64).contains("--yes"));
    let refused = failed(&site.output(&["resolve", id, "--abort", "--yes"]), 64);
    assert!(refused.contains("the log says commit"), "{refused}");
    failed(&site.output(&["forget", id]), 64);
    site.said(&["resolve", id, "--abort", "--against-the-log", "--yes"], 0);
    assert_eq!(site.moves(2).await, both("0"));
    let list = site.json(&["ls", "--json"], 1);
    assert_eq!(list["transactions"], Value::Array(vec![]));
    assert_eq!(list["damages"].as_array().unwrap().len(), 2, "{list}");
    assert!(site.said(&["show", id], 1).contains("against the log"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_what_nobody_has_committed_is_told_and_left() {
    let site = Site::start().await;
    let id = site.leave(1, Point::AllPrepared).await;
    let lost = id.log().to_owned();
    site.lose_the_log();
    // A new log is made: the old one is what is lost.
    let told = site.json(&["recover", "--without-log", &lost, "--json"], 1);
    let [one] = &told["orphans"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&one["id"], &one["fate"]), (&id.as_str().into(), &Value::from("nothing")));
    assert_eq!(one["prepared"], serde_json::json!(["orders", "stock"]));
    let line = site.said(&["recover", "--without-log", &lost, "--dry-run"], 1);
    assert!(line.contains("committed at nobody: stays prepared"), "{line}");
    assert_eq!(site.moves(1).await, both("0"));
    assert!(site.said(&["recover", "--without-log", "teapot"], 64).contains("no name of a log"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_what_somebody_has_committed_is_committed_by_all() {
    let site = Site::start().await;
    let id = site.leave(1, Point::Decided).await;
    site.postgres.sql(&format!("COMMIT PREPARED '{id}:0.orders'")).await.unwrap();
    let lost = id.log().to_owned();
    site.lose_the_log();
    let recover = ["recover", "--without-log", &lost];
    let refused = site.output(&recover);
    assert_eq!(code(&refused), 64, "nobody can be asked: {refused:?}");
    assert!(text(&refused.stderr).contains("--yes"), "{refused:?}");
    assert_eq!(site.moves(1).await, (String::from("1"), String::from("0")));
    let told = site.said(&[&recover[..], &["--yes"]].concat(), 0);
    assert!(told.contains(id.as_str()) && told.contains("is committed"), "{told}");
    assert_eq!(site.moves(1).await, both("1"));
    assert!(site.said(&recover, 0).contains("none has committed alone"));

    // As if the other one had been rolled back: nobody can tell by itself, so a person is told.
    site.mariadb.sql(&format!("DELETE FROM lockkeeper_2pc_witness WHERE id = '{id}'")).await.unwrap();
    let line = site.said(&recover, 1);
    assert!(line.contains("committed at orders, not at stock: perhaps damaged"), "{line}");
    let told = site.json(&[&recover[..], &["--json"]].concat(), 1);
    let one = &told["orphans"][0];
    assert_eq!((&one["fate"], &one["prepared"]), (&Value::from("nothing"), &Value::Array(vec![])), "{told}");
}

/// What is prepared there and not decided nobody can see: a watch that reads the exit code must not take that for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_is_not_named_counts_as_one_that_cannot_be_asked() {
    let site = Site::start().await;
    let id = site.leave(1, Point::AllPrepared).await;
    // Nobody rules to commit what perhaps not all have promised.
    let refused = failed(&site.of_orders(&["resolve", id.as_str(), "--commit", "--yes"]), 64);
    assert!(refused.contains("stock") && refused.contains("nobody knows whether all"), "{refused}");
    site.postgres.sql(&format!("ROLLBACK PREPARED '{id}:0.orders'")).await.unwrap();
    for command in [&["ls"][..], &["recover", "--dry-run"], &["recover"], &["recover", "--wait", "1ms"]] {
        let half = site.of_orders(command);
        assert_eq!(code(&half), 1, "{command:?}: the stock still has a branch: {half:?}");
        let told = text_of(&half).matches("stock").count();
        assert!(told >= 1, "{command:?}: {half:?}");
        let half = site.of_orders(&[command, &["--json"]].concat());
        assert_eq!(code(&half), 1, "{command:?}: {half:?}");
        let list: Value = serde_json::from_slice(&half.stdout).unwrap();
        assert_eq!(list["unreachable"][0]["participant"], "stock", "{command:?}: {list}");
    }
    assert!(site.said(&["recover"], 0).contains("nothing is left"));
    assert_eq!(site.moves(1).await, both("0"));
}

/// A participant is away: it is told, and what it has promised may be given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_lost_for_good_may_be_given_up() {
    let site = Site::start().await;
    let id = site.leave(1, Point::Decided).await;
    site.mariadb.kill().unwrap();
    let list = site.json(&["ls", "--json"], 1);
    assert_eq!(list["unreachable"][0]["participant"], "stock", "{list}");
    let branches = serde_json::json!([
        {"participant": "orders", "prepared": true}, {"participant": "stock", "prepared": null}
    ]);
    assert_eq!(list["transactions"][0]["branches"], branches, "{list}");
    let table = site.said(&["ls"], 1);
    assert!(table.contains("stock: unknown") && table.contains("not asked: stock"), "{table}");
    let told = site.said(&["forget", id.as_str(), "--give-up", "--yes"], 0);
    assert!(told.contains("is given up at stock, and kept as a damage"), "{told}");
    let list = site.json(&["ls", "--json"], 1);
    assert_eq!(list["transactions"], Value::Array(vec![]), "{list}");
    let damage = &list["damages"][0];
    assert_eq!((&damage["id"], &damage["participant"]), (&id.as_str().into(), &"stock".into()), "{list}");
    assert_eq!(site.postgres.sql("SELECT count(*) FROM move").await.unwrap().trim(), "1");
    failed(&site.output(&["forget", id.as_str(), "--give-up", "--yes"]), 64);
}

/// The settings name log and participants, so that nobody has to say them; and the doctor looks at both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_and_participants_may_stand_in_the_settings() {
    let site = Site::start().await;
    let id = site.leave(1, Point::AllPrepared).await;
    let file = site.store.path("lockkeeper.toml");
    let text = format!(
        "url = {:?}\n[two_phase]\nlog = {:?}\n[two_phase.participants]\norders = {:?}\nstock = {:?}\n",
        site.store.url(),
        site.log(),
        site.postgres.url(),
        site.mariadb.url()
    );
    std::fs::write(&file, text).unwrap();
    let output = |args: &[&str]| {
        let config = ["--config", file.to_str().unwrap()];
        common::output(&mut site.store.lockkeeper(config.iter().chain(args)))
    };
    let list = output(&["2pc", "ls"]);
    assert_eq!(code(&list), 1, "{list:?}");
    let table = text_of(&list);
    assert!(table.contains(id.as_str()) && table.contains("AGE"), "{table}");
    assert!(!table.contains("not asked"), "both participants are known: {table}");

    site.mariadb.sql("CREATE TABLE old (id int) ENGINE = MyISAM").await.unwrap();
    let doctor = output(&["doctor", "--all"]);
    let said = text_of(&doctor);
    assert!(said.contains("participant stock: tables that no branch can roll back: old (MyISAM)"), "{said}");
    assert!(
        said.contains("participant orders: max_prepared_transactions is 10, and 1 are prepared"),
        "{said}"
    );
    assert!(text_of(&output(&["2pc", "ls"])).contains("warning: stock: tables that no branch can roll back"));
    let strict = output(&["doctor", "--strict", "--json"]);
    assert_eq!(code(&strict), 1, "{strict:?}");

    // What is said on the command line is stronger.
    let elsewhere = output(&["2pc", "ls", "--log", "sqlite:/proc/nowhere/2pc.db"]);
    assert!(failed(&elsewhere, 69).contains("there is no log"));
    let recovered = output(&["2pc", "recover"]);
    assert_eq!(code(&recovered), 0, "{recovered:?}");
    assert_eq!(site.moves(1).await, both("0"));
}

fn text_of(output: &std::process::Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_or_watches_is_told_what_changes() {
    let site = Site::start().await;
    let id = site.leave(1, Point::AllPrepared).await;
    let locker = lockkeeper::connect(&site.store.url()).await.unwrap();
    let seat = locker.lock(format!("2pc/{}/0", id.log())).await.unwrap();
    // As long as somebody holds the seat there is something left, and a short wait ends with that.
    assert!(
        site.said(&["recover", "--wait", "100ms", "--every", "50ms"], 75).contains("left to whoever holds")
    );
    let mut command = site.store.lockkeeper(["2pc", "recover", "--watch", "--every", "50ms"]);
    command.env("LOCKKEEPER_2PC_LOG", site.log()).env("LOCKKEEPER_2PC_PARTICIPANTS", site.participants());
    let watching = Talking::start(&mut command);
    let first = watching.line().unwrap();
    assert!(first.starts_with(id.as_str()) && first.contains("left to whoever holds its seat"), "{first}");
    seat.release().await.unwrap();
    while watching.line().unwrap() != format!("{id} is over") {}
    assert_eq!(site.moves(1).await, both("0"));
    watching.send(rustix::process::Signal::INT);
    assert_eq!(watching.finish().0, 0, "nothing is left when it is stopped");
    site.leave(2, Point::Decided).await;
    site.said(&["recover", "--wait", "60s", "--every", "50ms"], 0);
    assert_eq!(site.moves(2).await, both("1"));
    failed(&site.output(&["recover", "--watch", "--dry-run"]), 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_branch_alone_may_be_told_and_leaves_a_damage() {
    let site = Site::start().await;
    let undecided = site.leave(1, Point::AllPrepared).await;
    let id = undecided.as_str();
    let nobody = site.output(&["resolve", id, "--commit", "--branch", "nobody", "--yes"]);
    assert!(failed(&nobody, 64).contains("no branch at nobody"));
    site.said(&["resolve", id, "--commit", "--branch", "orders", "--yes"], 0);
    assert_eq!(site.moves(1).await, (String::from("1"), String::from("0")), "the other one was not told");
    let list = site.json(&["ls", "--json"], 1);
    let [one] = &list["damages"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!((&one["participant"], &one["expected"]), (&Value::from("orders"), &Value::from("abort")));
    assert!(one["found"].as_str().unwrap().contains("alone"), "{one}");
}

/// Whatever may split a transaction is asked for on a terminal, and only its whole name is a yes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_split_a_transaction_types_its_name() {
    let site = Site::start().await;
    let undecided = site.leave(1, Point::AllPrepared).await;
    let id = undecided.as_str();
    let resolve = format!("resolve {id} --commit");
    for no in ["y\n", "yes\n", "\n", "\x04", &format!("{}\n", &id[..id.len() - 1]), &format!("{id}x\n")] {
        assert_eq!(site.typed(&resolve, id, no), Some(1), "{no:?}");
        assert_eq!(site.moves(1).await, both("0"), "{no:?} is no yes");
    }
    assert_eq!(site.typed(&resolve, id, &format!("{id}\n")), Some(0));
    assert_eq!(site.moves(1).await, both("1"));

    let decided = site.leave(2, Point::Decided).await;
    let lost = decided.log().to_owned();
    site.postgres.sql(&format!("COMMIT PREPARED '{decided}:0.orders'")).await.unwrap();
    site.lose_the_log();
    let recover = format!("recover --without-log {lost}");
    assert_eq!(site.typed(&recover, &lost, "y\n"), Some(1));
    assert_eq!(site.moves(2).await, (String::from("1"), String::from("0")));
    assert_eq!(site.typed(&recover, &lost, &format!("{lost}\n")), Some(0));
    assert_eq!(site.moves(2).await, both("1"));

    let decided = site.leave(3, Point::Decided).await;
    let (id, give_up) = (decided.as_str(), format!("forget {decided} --give-up"));
    site.mariadb.kill().unwrap();
    assert_eq!(site.typed(&give_up, id, "yes\n"), Some(1));
    assert_eq!(site.json(&["ls", "--json"], 1)["transactions"][0]["id"], id, "it is still told");
    assert_eq!(site.typed(&give_up, id, &format!("{id}\n")), Some(0));
    let list = site.json(&["ls", "--json"], 1);
    assert_eq!((&list["transactions"], &list["damages"][0]["id"]), (&Value::Array(vec![]), &id.into()));
}
