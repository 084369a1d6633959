//! etcd: against put-if-absent and delete under a lease, and against the server's own `Lock` call.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{Clock, Locker};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::{Etcd as Server, EtcdOptions};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{cycles, hand_off, on_several};
use crate::measure::beside_tasks;
use crate::report::Row;
use crate::rival::{Ours, Rival};
use crate::{Answer, Outcome, crowd};

/// The same stubs that our client speaks with.
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "../../../lockkeeper-etcd/src/wire/etcdserverpb.rs"]
mod wire;

mod processes;

use wire::compare::{CompareTarget, TargetUnion};
use wire::kv_client::KvClient;
use wire::lease_client::LeaseClient;
use wire::request_op::Request;

const TTL: Duration = Duration::from_secs(30);

pub(crate) async fn run(three: bool) -> Outcome {
    let servers = if three {
        Server::cluster().await.map(|it| (Some(it), None))?
    } else {
        Server::start(EtcdOptions::default()).await.map(|it| (None, Some(it)))?
    };
    let hosts: Vec<String> = match &servers {
        (Some(cluster), _) => cluster.nodes().iter().map(|it| it.address()).collect(),
        (_, one) => one.iter().map(|it| it.address()).collect(),
    };
    let locker =
        Locker::builder(Etcd::connect(&format!("etcd://{}", hosts.join(","))).await?).ttl(TTL).build();
    let channel = open(&format!("etcd://{}", hosts[0])).await?;
    let what = "lock + unlock, beside bare put-if-absent and delete";
    let mut rows = vec![Row::of_times(what, free(locker.clone(), channel.clone()).await?, 1.15)];
    if !three {
        rows.push(Row::of_times("the same on `multi_thread`", several(hosts.clone()).await?, 1.15));
    }
    let ours = crowd::here(vec![Ours::new(&locker)], 64, "crowd", hand_off::SPAN).await?.sound()?;
    let theirs =
        crowd::here(vec![ServerLock { channel, lease: 0 }], 64, "rival", hand_off::SPAN).await?.sound()?;
    let what = "64 tasks of one process on one key, guards per second, beside the server's `Lock` call";
    rows.push(Row::of_rates(what, (ours.rate(), theirs.rate()), 30.0));
    let url = format!("etcd://{}", hosts.join(","));
    let process = async || {
        Ok::<_, lockkeeper_core::Error>(Locker::builder(Etcd::connect(&url).await?).ttl(TTL).build())
    };
    let processes = [process().await?, process().await?];
    // The first lock of a process asks for its lease.
    for it in &processes {
        it.lock("warm").await?.release().await?;
    }
    // Every client asks the first node, as long as it answers.
    let first = match &servers {
        (Some(cluster), _) => cluster.nodes().first(),
        (_, one) => one.as_ref(),
    };
    let first = first.ok_or("there is no server")?;
    let before = requests(first).await?;
    let handed = hand_off::to_and_fro(processes).await?;
    let after = requests(first).await?;
    let (all, beats) = (after.0 - before.0, after.1 - before.1);
    // Each beat is followed by a write that proves it.
    let of_guards = all.saturating_sub(2 * beats);
    let note = format!("stand in line, enter, give back; {beats} heartbeats of two requests each apart");
    rows.push(hand_off::row(&handed, of_guards, 3.0, &note));
    if !three {
        rows.extend(processes::run(&url).await?);
    }
    Ok(rows)
}

/// On several threads.
async fn several(hosts: Vec<String>) -> Answer<(Duration, Duration)> {
    on_several(move || opened(hosts)).await
}

/// The same with connections of its own, which live on the present runtime.
async fn opened(hosts: Vec<String>) -> Answer<(Duration, Duration)> {
    let store = Etcd::connect(&format!("etcd://{}", hosts.join(","))).await?;
    let channel = open(&format!("etcd://{}", hosts[0])).await?;
    free(Locker::builder(store).ttl(TTL).build(), channel).await
}

/// A free lock, and the bare requests.
async fn free(locker: Locker, channel: Channel) -> Answer<(Duration, Duration)> {
    let lease = wire::LeaseGrantRequest { ttl: 600, id: 0 };
    let lease = LeaseClient::new(channel.clone()).lease_grant(lease).await?.into_inner().id;
    locker.lock("warm").await?.release().await?;
    beside_tasks(
        |count| cycles(locker.clone(), count),
        |count| {
            let channel = channel.clone();
            async move {
                for _ in 0..count {
                    bare(&channel, lease).await?;
                }
                Ok(())
            }
        },
    )
    .await
}

/// What a server was asked so far, and how many heartbeats of leases were among it.
async fn requests(server: &Server) -> Answer<(u64, u64)> {
    let all = server.figure("grpc_server_handled_total{").await?;
    let beats = "grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"";
    Ok((all, server.figure(beats).await?))
}

async fn bare(channel: &Channel, lease: i64) -> Answer<()> {
    let key = Bytes::from_static(b"bare");
    let absent = wire::Compare {
        target: CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..wire::Compare::default()
    };
    let put = wire::PutRequest { key: key.clone(), lease, ..wire::PutRequest::default() };
    let delete = wire::DeleteRangeRequest { key, ..wire::DeleteRangeRequest::default() };
    let mut client = KvClient::new(channel.clone());
    let take = wire::TxnRequest {
        compare: vec![absent],
        success: vec![wire::RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: Vec::new(),
    };
    client.txn(take).await?;
    let give = wire::TxnRequest {
        success: vec![wire::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }],
        ..wire::TxnRequest::default()
    };
    client.txn(give).await?;
    Ok(())
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes, tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes, tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}

/// The server's own call. Tasks with one lease would share the lock. Each has its own, or asks for a new one each time (0).
#[derive(Clone)]
pub(crate) struct ServerLock {
    channel: Channel,
    lease: i64,
}

impl ServerLock {
    /// As another process, from a URL as ours is.
    pub(crate) async fn open(url: &str) -> Answer<Self> {
        Ok(ServerLock { channel: open(url).await?, lease: 0 })
    }

    pub(crate) async fn connect(address: &str) -> Answer<Self> {
        Ok(ServerLock { channel: dial(address).await?, lease: 0 })
    }

    /// One of several on this connection, with a lease of its own that is kept alive as long as this process is.
    pub(crate) async fn leased(&self, ttl: Duration) -> Answer<Self> {
        let mut client = LeaseClient::new(self.channel.clone());
        let wish = wire::LeaseGrantRequest { ttl: i64::try_from(ttl.as_secs())?, id: 0 };
        let lease = client.lease_grant(wish).await?.into_inner().id;
        tokio::spawn(async move {
            loop {
                Clock::boot().sleep(ttl / 3).await;
                let beat = futures_util::stream::iter([wire::LeaseKeepAliveRequest { id: lease }]);
                // One that fails is followed by the next; a lease that ended is told by whoever asks under it.
                if let Ok(answers) = client.lease_keep_alive(beat).await {
                    drop(answers.into_inner().message().await);
                }
            }
        });
        Ok(ServerLock { channel: self.channel.clone(), lease })
    }

    /// One bare trip: a read of a key that is not there.
    pub(crate) async fn trip(&self) -> Answer<()> {
        let key = wire::RangeRequest { key: Bytes::from_static(b"bare"), ..wire::RangeRequest::default() };
        KvClient::new(self.channel.clone()).range(key).await?;
        Ok(())
    }
}

/// A connection to the first server that a URL of ours names.
async fn open(url: &str) -> Answer<Channel> {
    let hosts = url.strip_prefix("etcd://").ok_or("no URL of etcd")?;
    dial(hosts.split(',').next().unwrap_or(hosts)).await
}

async fn dial(address: &str) -> Answer<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?)
}

impl Rival for ServerLock {
    /// The key that stands for the lock.
    type Taken = Vec<u8>;

    async fn take(&mut self, key: &str) -> Answer<Vec<u8>> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let lock = tonic::Request::new(LockRequest { name: key.as_bytes().to_vec(), lease: self.lease });
        let path = http_path("/v3lockpb.Lock/Lock")?;
        let locked: tonic::Response<LockResponse> = grpc.unary(lock, path, ProstCodec::default()).await?;
        Ok(locked.into_inner().key)
    }

    async fn give_back(&mut self, key: Vec<u8>) -> Answer<()> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let path = http_path("/v3lockpb.Lock/Unlock")?;
        let unlock = tonic::Request::new(UnlockRequest { key });
        let _: tonic::Response<UnlockResponse> = grpc.unary(unlock, path, ProstCodec::default()).await?;
        Ok(())
    }
}

fn http_path(path: &'static str) -> Answer<tonic::codegen::http::uri::PathAndQuery> {
    Ok(tonic::codegen::http::uri::PathAndQuery::try_from(path)?)
}
