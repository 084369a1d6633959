//! Warm locks on a real MariaDB and a real MySQL, where nobody can be called: whoever is idle looks.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_core::backend::Backend as _;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{MariaDb, MariaDbOptions, Mysql as MysqlServer, MysqlOptions};
use lockkeeper_sql::mysql::Mysql;
use lockkeeper_testkit::warm;

/// So long that nothing is due within a test: what a holder learns, it looked for.
const TTL: Duration = Duration::from_secs(3600);
/// Ten looks a second, and as much again for a slow machine's clock.
const LOOKS_PER_SECOND: u128 = 20;

macro_rules! warm_locks {
    ($module:ident, $server:ty, $options:ty) => {
        mod $module {
            use super::*;

            async fn start() -> $server {
                <$server>::start(<$options>::default()).await.unwrap()
            }

            async fn process(server: &$server) -> Mysql {
                Mysql::connect(&server.url()).await.unwrap()
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn what_is_idle_in_one_process_is_had_by_another() {
                let server = start().await;
                warm::recalled(&process(&server).await, &process(&server).await, TTL).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn whoever_tries_gets_what_is_idle_and_waits_for_nothing_else() {
                let server = start().await;
                warm::tried(&process(&server).await, &process(&server).await, TTL).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn what_is_broken_while_idle_goes() {
                let server = start().await;
                warm::what_is_broken_while_idle_goes(&process(&server).await, &process(&server).await, TTL)
                    .await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_lock_that_is_taken_again_and_again_costs_a_look_now_and_then() {
                let server = start().await;
                let asked = async || {
                    let said = server.sql("SHOW GLOBAL STATUS LIKE 'Com_select'").await.unwrap();
                    said.split_whitespace().last().unwrap().parse().unwrap()
                };
                let allowed =
                    |span: Duration| u64::try_from(span.as_millis() * LOOKS_PER_SECOND / 1000).unwrap() + 10;
                warm::taken_again_without_a_word(&process(&server).await, TTL, asked, allowed).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_broken_connection_is_no_recall_and_nobody_is_idle_without_one() {
                let server = start().await;
                let proxy = Proxy::start(server.port()).await.unwrap();
                let url = server.url().replace(&format!(":{}", server.port()), &format!(":{}", proxy.port()));
                let far = Mysql::connect(&url).await.unwrap();
                let (cut, mend) = (
                    async || {
                        proxy.refuse().await.unwrap();
                        proxy.cut();
                    },
                    async || proxy.accept().await.unwrap(),
                );
                warm::idle_goes_when_the_connection_breaks(&far, &process(&server).await, TTL, cut, mend)
                    .await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn many_that_are_idle_look_by_one_statement() {
                const MANY: u64 = 100;
                let server = start().await;
                let locker = Locker::builder(process(&server).await).ttl(TTL).warm(true).build();
                for nth in 0..MANY {
                    locker.lock(format!("k/{nth}")).await.unwrap().release().await.unwrap();
                }
                let asked = async || {
                    let said = server.sql("SHOW GLOBAL STATUS LIKE 'Com_select'").await.unwrap();
                    said.split_whitespace().last().unwrap().parse::<u64>().unwrap()
                };
                let (clock, before) = (lockkeeper_core::Clock::boot(), asked().await);
                let began = clock.now();
                // Until some looks were taken: however long that takes, they are few for so many locks.
                while asked().await < before + 10 {
                    clock.sleep(Duration::from_millis(10)).await;
                }
                let (looks, span) = (asked().await - before, clock.now() - began);
                let most = u64::try_from(span.as_millis() * LOOKS_PER_SECOND / 1000).unwrap() + 10;
                assert!(looks <= most, "{looks} statements in {span:?} for {MANY} idle locks");
                assert_eq!(locker.lines(), 100);
                assert!(process(&server).await.profile().looks);
            }
        }
    };
}

warm_locks!(on_mariadb, MariaDb, MariaDbOptions);
warm_locks!(on_mysql, MysqlServer, MysqlOptions);
