//! Buyers: each connection buys for one after the other, and all connections at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Trouble;

/// Connections to each instance.
const CONNECTIONS: u32 = 50;

/// Send the buyers, and tell how many bought and what the books say.
pub(crate) async fn run(buyers: u32, addresses: &[&str]) -> Result<String, Trouble> {
    let next = Arc::new(AtomicU32::new(0));
    let mut connections = JoinSet::new();
    for address in addresses {
        for _ in 0..CONNECTIONS {
            let (mut shop, next) = (connect(address).await?, next.clone());
            connections.spawn(async move {
                let mut counts = (0, 0, 0);
                loop {
                    let buyer = next.fetch_add(1, Ordering::Relaxed);
                    if buyers <= buyer {
                        return Ok::<_, Trouble>(counts);
                    }
                    match ask(&mut shop, Method::POST, &format!("/buy/buyer-{buyer}")).await?.0 {
                        StatusCode::OK => counts.0 += 1,
                        StatusCode::GONE => counts.1 += 1,
                        _ => counts.2 += 1,
                    }
                }
            });
        }
    }
    let (mut sold, mut sold_out, mut failed) = (0, 0, 0);
    while let Some(counts) = connections.join_next().await {
        let counts = counts??;
        (sold, sold_out, failed) = (sold + counts.0, sold_out + counts.1, failed + counts.2);
    }
    let (_, books) = ask(&mut connect(addresses[0]).await?, Method::GET, "/books").await?;
    Ok(format!("sold {sold}, sold out {sold_out}, failed {failed}\n{}", books.trim_end()))
}

async fn connect(address: &str) -> Result<SendRequest<Empty<Bytes>>, Trouble> {
    let stream = TcpStream::connect(address).await.map_err(|it| format!("{address}: {it}"))?;
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    // Its errors come back as answers to what was asked.
    tokio::spawn(driver);
    Ok(sender)
}

async fn ask(
    shop: &mut SendRequest<Empty<Bytes>>,
    method: Method,
    path: &str,
) -> Result<(StatusCode, String), Trouble> {
    let request = Request::builder().method(method).uri(path).header("host", "shop").body(Empty::new())?;
    shop.ready().await?;
    let response = shop.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
