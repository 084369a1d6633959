//! A shop over HTTP that several processes run: each sale under a lock, each write with its fence.
//!
//! ```text
//! flash-sale-http                        serve: POST /buy/BUYER, GET /stock, GET /books
//! flash-sale-http load BUYERS ADDRESS…   send that many buyers to these instances
//! ```
//!
//! The environment says the rest: `LISTEN` (an address), `LOCKKEEPER_URL` (the locks), `LOCKKEEPER_DB` (the books:
//! `sqlite:PATH` or `mysql://…`), `STOCK` (how many pieces, when the books are made).

mod load;
mod shop;

use std::convert::Infallible;
use std::env;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lockkeeper::{Error, Locker};
use tokio::net::TcpListener;

use shop::{Shop, Sold};

type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// How long a buyer waits for a turn before being asked to come again.
const PATIENCE: Duration = Duration::from_secs(30);

struct Service {
    locker: Locker,
    shop: Shop,
    /// Seen once, true for good: stock never grows.
    sold_out: AtomicBool,
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => serve().await,
        ["load", buyers, addresses @ ..] if !addresses.is_empty() => {
            say(&load::run(buyers.parse()?, addresses).await?)
        }
        _ => Err("usage: flash-sale-http [load BUYERS ADDRESS…]".into()),
    }
}

async fn serve() -> Result<(), Trouble> {
    let or = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let stock = or("STOCK", "100").parse()?;
    let service = Arc::new(Service {
        locker: lockkeeper::connect(&or("LOCKKEEPER_URL", "sqlite:flash-sale-locks.db")).await?,
        shop: Shop::open(&or("LOCKKEEPER_DB", "sqlite:flash-sale-books.db"), stock).await?,
        sold_out: AtomicBool::new(false),
    });
    let listener = TcpListener::bind(or("LISTEN", "127.0.0.1:8080")).await?;
    say(&format!("listening on {}", listener.local_addr()?))?;
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| service.answer(request));
            // A buyer who hangs up is no trouble of ours.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

impl Service {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path();
        let answered = match (request.method(), path.strip_prefix("/buy/")) {
            (&Method::POST, Some(buyer)) => self.buy(buyer).await,
            (&Method::GET, _) if path == "/stock" => {
                self.shop.books().await.map(|it| (StatusCode::OK, it.left.to_string()))
            }
            (&Method::GET, _) if path == "/books" => {
                self.shop.books().await.map(|it| (StatusCode::OK, it.to_string()))
            }
            _ => Ok((StatusCode::NOT_FOUND, "POST /buy/BUYER, GET /stock, GET /books".to_owned())),
        };
        let (status, text) = answered.unwrap_or_else(|it| {
            complain(&it);
            (StatusCode::INTERNAL_SERVER_ERROR, "something went wrong; look into the books".to_owned())
        });
        let mut response = Response::new(Full::from(format!("{text}\n")));
        *response.status_mut() = status;
        Ok(response)
    }

    /// The whole point: wait for a turn, sell while it lasts, and let the database refuse us if it did not.
    async fn buy(&self, buyer: &str) -> Result<(StatusCode, String), Trouble> {
        let sold_out = || Ok((StatusCode::GONE, "sold out".to_owned()));
        if self.sold_out.load(Ordering::Relaxed) {
            return sold_out();
        }
        let guard = match self.locker.lock("flash-sale/product/1").wait_at_most(PATIENCE).await {
            Ok(guard) => guard,
            Err(Error::TimedOut { .. } | Error::Full { .. }) => {
                return Ok((StatusCode::SERVICE_UNAVAILABLE, "too many buyers; come again".to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        let sold = guard.run(self.shop.sell(buyer, guard.fence())).await??;
        // The sale is made; a lock that cannot be given back now ends by its ttl.
        if let Err(error) = guard.release().await {
            complain(&error);
        }
        match sold {
            Sold::Yes => Ok((StatusCode::OK, format!("sold to {buyer}"))),
            Sold::TwiceToOne => Ok((StatusCode::CONFLICT, format!("{buyer} has one already"))),
            Sold::Out => {
                self.sold_out.store(true, Ordering::Relaxed);
                sold_out()
            }
        }
    }
}

fn complain(error: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "flash-sale-http: {error}");
}

fn say(text: &str) -> Result<(), Trouble> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
