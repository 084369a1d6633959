//! A coordinator is killed at every step. Whoever comes next finishes what it left, and both databases agree.

use std::sync::Arc;

use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{Flavour, MysqlOptions};
use lockkeeper_twophase::Verdict;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::site::{Place, Site};
use crate::worker::{At, Orders, Worker};

/// One death.
#[derive(Clone, Debug, Default)]
struct Case {
    /// The number of the crash point in the plan.
    point: &'static str,
    orders: Orders,
    /// The answer to this request is lost on its way to the worker.
    lose: Option<(&'static str, &'static str)>,
    /// Another one then recovers and dies there.
    again: Option<At>,
    /// Whether the money is moved in the end; `None` if both are right.
    moved: Option<bool>,
    place: Place,
}

fn case(point: &'static str, die: At, moved: impl Into<Option<bool>>) -> Case {
    let orders = Orders { die: Some(die), ..Orders::default() };
    Case { point, orders, moved: moved.into(), ..Case::default() }
}

impl Case {
    fn hold(mut self, hold: At) -> Self {
        self.orders.hold = Some(hold);
        self
    }

    fn lose(mut self, server: &'static str, request: &'static str) -> Self {
        self.lose = Some((server, request));
        self
    }

    fn veto(mut self) -> Self {
        self.orders.veto = true;
        self
    }

    fn again(mut self, at: At) -> Self {
        self.again = Some(at);
        self
    }

    fn log(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
}

fn cases() -> Vec<Case> {
    let mut half = case("4", ("", ""), false);
    half.orders = Orders { half: true, ..Orders::default() };
    let mut cases = vec![
        case("1", ("Ready", ""), false),
        case("2", ("ParticipantNoted", "orders"), false),
        case("3", ("Begun", "orders"), false),
        half,
        case("5", ("Worked", ""), false),
        case("6", ("RollingBack", "orders"), false).lose("orders", "PREPARE TRANSACTION"),
        case("7", ("Prepared", "orders"), false).hold(("Preparing", "stock")),
        case("7, the other way round", ("Prepared", "stock"), false).hold(("Preparing", "orders")),
        case("8", ("Ended", "stock"), false),
        case("9", ("RollingBack", "stock"), false).lose("stock", "XA PREPARE"),
        case("10", ("AllPrepared", ""), false),
        case("11", ("Deciding", ""), false),
        case("12, 13", ("Decided", ""), true),
        case("14", ("Unanswered", "orders"), true)
            .hold(("Committing", "stock"))
            .lose("orders", "COMMIT PREPARED"),
        case("15", ("Committed", "orders"), true).hold(("Committing", "stock")),
        case("15, the other way round", ("Committed", "stock"), true).hold(("Committing", "orders")),
        case("16", ("Unanswered", "stock"), true).hold(("Committing", "orders")).lose("stock", "XA COMMIT"),
        case("17", ("AllCommitted", ""), true),
        case("18", ("Finished", ""), true),
        case("19", ("RollingBack", "orders"), false).veto(),
        case("20", ("RolledBack", "orders"), false).veto().lose("orders", "ROLLBACK PREPARED"),
        case("21", ("Aborted", ""), false).veto(),
    ];
    for (first, moved) in [("Decided", true), ("AllPrepared", false)] {
        cases.push(case("22", (first, ""), moved).again(("SeatTaken", "")));
        cases.push(case("23", (first, ""), moved).again(("FenceRaised", "")));
        cases.push(case("24", (first, ""), moved).again(("Listed", "")));
        cases.push(case("25", (first, ""), moved).again(("Recovered", "")));
    }
    cases.push(case("26", ("Decided", ""), true).again(("AllCommitted", "")));
    cases
}

/// The statement that writes a decision, which ends in a commit.
const DECISION: &str = "INTO lockkeeper_2pc_verdict";

/// With the log in a server there is no thread that decides; instead the answer can be lost on its way.
fn cases_with_a_server(place: Place) -> Vec<Case> {
    let (server, home) = match place {
        Place::BesideOrders => ("orders", None),
        Place::BesideStock => ("stock", None),
        Place::WithOrders => ("orders", Some("stock")),
        _ => ("stock", Some("orders")),
    };
    let other = home.unwrap_or("orders");
    // MariaDB answers the statements of one message one by one, so the cut may come before the commit.
    let lost = (server == "orders").then_some(true);
    let cases = vec![
        case("1", ("Ready", ""), false),
        case("7", ("Prepared", other), false),
        case("10", ("AllPrepared", ""), false),
        case("11", ("Deciding", ""), false),
        case(if home.is_some() { "27" } else { "12" }, ("Doubted", ""), lost).lose(server, DECISION),
        case(if home.is_some() { "28" } else { "13" }, ("Decided", ""), true),
        case("14, 16", ("Unanswered", other), true)
            .lose(other, if other == "orders" { "COMMIT PREPARED" } else { "XA COMMIT" }),
        case("17", ("AllCommitted", ""), true),
        case("18", ("Finished", ""), true),
        case("23", ("Decided", ""), true).again(("FenceRaised", "")),
        case("23", ("AllPrepared", ""), false).again(("FenceRaised", "")),
        case("25", ("Decided", ""), true).again(("Recovered", "")),
        case("26", ("Decided", ""), true).again(("AllCommitted", "")),
    ];
    cases.into_iter().map(|it| it.log(place)).collect()
}

/// Play one death, recover, and look.
async fn play<F: Flavour>(site: &Site<F>, case: &Case) {
    let name = format!("{case:?}");
    let bank = site.bank_with(case.place).await;
    let (orders, stock) =
        (Proxy::start(site.postgres.port()).await.unwrap(), Proxy::start(site.mysql.port()).await.unwrap());
    let behind = bank.behind(site, &orders, &stock);
    if let Some((server, request)) = case.lose {
        if server == "orders" { &orders } else { &stock }.lose_reply(request.as_bytes());
    }
    let (killed, said) = Worker::start(&behind, &case.orders).end().await;
    assert!(killed, "{name}: the worker reaches its point, but it said {said:?}");
    if let Some(at) = case.again {
        let orders = Orders { recover: true, die: Some(at), ..Orders::default() };
        let (killed, said) = Worker::start(&behind, &orders).end().await;
        assert!(killed, "{name}: the second worker reaches its point, but it said {said:?}");
    }
    bank.recover().await;
    let moved = site.check(&bank, &name).await;
    assert!(case.moved.is_none_or(|it| it == moved), "{name}: moved is {moved}");
    let id = said.iter().find_map(|it| it.strip_prefix("id "));
    if let Some(id) = id {
        let verdict = bank.verdict(id).await;
        let happened = if moved { Verdict::Committed } else { Verdict::Aborted };
        assert_eq!(verdict, happened, "{name}: who asks later is told what happened");
    }
}

async fn play_all<F: Flavour>(site: Site<F>, cases: Vec<Case>) {
    let (site, room) = (Arc::new(site), Arc::new(Semaphore::new(6)));
    let mut plays = JoinSet::new();
    for case in cases {
        let (site, room) = (site.clone(), room.clone());
        plays.spawn(async move {
            let _place = room.acquire().await.unwrap();
            play(&site, &case).await;
        });
    }
    while let Some(played) = plays.join_next().await {
        played.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_die_at_every_step() {
    play_all(Site::start().await, cases()).await;
}

/// MySQL itself differs from MariaDB in most of what matters here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_die_beside_mysql() {
    let site = Site::of(MysqlOptions::default()).await;
    let some = ["7", "9", "10", "12, 13", "15", "16", "25"];
    play_all(site, cases().into_iter().filter(|it| some.contains(&it.point)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_die_with_its_log_in_a_server() {
    let places = [Place::BesideOrders, Place::BesideStock];
    play_all(Site::start().await, places.into_iter().flat_map(cases_with_a_server).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_die_with_its_log_in_a_participant() {
    let places = [Place::WithOrders, Place::WithStock];
    play_all(Site::start().await, places.into_iter().flat_map(cases_with_a_server).collect()).await;
}

/// MySQL itself, with the log on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_die_with_its_log_in_mysql() {
    let some = ["10", "12", "13", "27", "28", "25"];
    let cases = [Place::BesideStock, Place::WithStock].into_iter().flat_map(cases_with_a_server);
    let cases = cases.filter(|it| some.contains(&it.point)).collect();
    play_all(Site::of(MysqlOptions::default()).await, cases).await;
}
