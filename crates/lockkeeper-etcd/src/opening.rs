//! Finding the cluster and being known to it: who is ours of the named nodes, and the token of our user.

use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use tokio::sync::mpsc;
use tonic::{Request, Status};

use crate::channel;
use crate::cluster::{self, Verdict, Word};
use crate::connection::{Connection, Failed};
use crate::fault;
use crate::wire::auth_client::AuthClient;
use crate::wire::cluster_client::ClusterClient;
use crate::wire::kv_client::KvClient;
use crate::wire::{
    Answer as _, AuthenticateRequest, MemberListRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

const CONNECTING: &str = "connecting";

impl Connection {
    /// One transaction.
    pub(crate) async fn txn(&self, txn: TxnRequest) -> std::result::Result<TxnResponse, Status> {
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        self.call(txn, call).await
    }

    /// One transaction, sent again elsewhere after `patience`. Tells how often it was sent: what was not answered may
    /// still be under way.
    pub(crate) async fn txn_counted(
        &self,
        patience: Duration,
        txn: TxnRequest,
    ) -> std::result::Result<(TxnResponse, u32), Failed> {
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        self.call_counted(patience, txn, call).await
    }

    /// Ask for a token, if there is a user.
    pub(crate) async fn authenticate(&self) -> std::result::Result<(), Status> {
        let (Some(name), Some(password)) = (&self.options.user, &self.options.password) else {
            return Ok(());
        };
        // The old token stays until there is a new one: others go on meanwhile, and hear by themselves that it is stale.
        let message = AuthenticateRequest { name: name.clone(), password: password.reveal().to_owned() };
        let call = |channel, mut request: Request<AuthenticateRequest>| async move {
            // A stale token would be refused here, too, and there would be no end to it.
            request.metadata_mut().remove("token");
            AuthClient::new(channel).authenticate(request).await
        };
        // Boxed, because a call may ask for a token and this is a call.
        let answer = Box::pin(self.call(message, call)).await?;
        let token = answer.token.parse();
        *self.token() = Some(token.map_err(|_| Status::internal("the server's token cannot be sent"))?);
        Ok(())
    }

    /// Find out whose cluster it is, and whether it serves us. Answers what `first_look` finds.
    pub(crate) async fn open(&self, first_look: RangeRequest) -> Result<RangeResponse> {
        self.authenticate().await.map_err(|it| self.refused(&it))?;
        self.identify().await?;
        let call = |channel, request| async move { KvClient::new(channel).range(request).await };
        self.call(first_look, call).await.map_err(|it| self.refused(&it))
    }

    /// Ask all named nodes at once which cluster they belong to, until enough have answered.
    async fn identify(&self) -> Result<()> {
        let (words, failed) = self.ask_around().await;
        match cluster::judge(self.nodes(), &words, true) {
            Verdict::Ours(id) => {
                self.cluster.set(id, &words);
                if let Some(ours) = words.iter().find(|it| it.cluster == id) {
                    self.turn_to(ours.at);
                }
                Ok(())
            }
            _ if words.is_empty() => Err(self.refused(&failed)),
            _ => {
                let (names, told) = (&self.options.endpoints, cluster::told(&self.options.endpoints, &words));
                let text = format!(
                    "it is not clear which cluster is meant: {told}, and of {} named nodes more than half must \
                     agree; start the others ({}), or take those of another cluster out of the URL",
                    names.len(),
                    names.join(", ")
                );
                Err(Fault::transient(fault::NAME, CONNECTING, text))
            }
        }
    }

    /// What the named nodes say, until it is enough, or time is over. Asked on connections that are closed afterwards.
    async fn ask_around(&self) -> (Vec<Word>, Status) {
        let (tell, mut told) = mpsc::unbounded_channel();
        for at in 0..self.nodes() {
            let (tell, request) = (tell.clone(), self.request(MemberListRequest {}, false));
            let entered = self.driver.enter();
            let channel =
                channel::channel(&self.options.endpoints[at], &self.options, &channel::Dials::default());
            drop(entered);
            let Ok(channel) = channel else { continue };
            let (clock, timeout) = (self.clock.clone(), self.options.timeout);
            self.driver.spawn(async move {
                let answer = tokio::select! {
                    answer = async { ClusterClient::new(channel).member_list(request).await } => answer,
                    () = clock.sleep(timeout) => Err(Status::deadline_exceeded("no node answers in time")),
                    // Enough have answered.
                    () = tell.closed() => return,
                };
                let _ = tell.send((at, answer.map(tonic::Response::into_inner)));
            });
        }
        drop(tell);
        let (mut words, mut failed) = (Vec::new(), Status::unavailable(""));
        while let Some((at, answer)) = told.recv().await {
            match answer {
                Ok(it) => words.push(Word { at, cluster: it.cluster(), members: it.members.len() }),
                Err(status) => failed = status,
            }
            if cluster::judge(self.nodes(), &words, false) != Verdict::Open {
                break;
            }
        }
        (words, failed)
    }

    /// Whether this node belongs to another cluster than ours.
    pub(crate) async fn is_strange(&self, at: usize) -> bool {
        if self.nodes() == 1 || self.cluster.id() == 0 {
            return false;
        }
        let asked = self.request(MemberListRequest {}, false);
        let answer = tokio::select! {
            answer = async { ClusterClient::new(self.node(at)).member_list(asked).await } => answer,
            () = self.clock.sleep(self.options.timeout) => return false,
        };
        answer.is_ok_and(|it| !self.cluster.admits(at, it.get_ref().cluster()))
    }

    /// A call failed everywhere: say so, and what stands in the way. If all of the cluster was replaced, ours is the
    /// new one from now on; our leases are then gone, and whoever holds hears of it by its next heartbeat.
    pub(crate) async fn in_words(&self, status: Status) -> Status {
        if cluster::is_strange(&status) {
            let (words, _) = self.ask_around().await;
            if let Verdict::Ours(id) = cluster::judge(self.nodes(), &words, false)
                && id != self.cluster.id()
            {
                self.cluster.set(id, &words);
                return Status::aborted("the cluster was replaced by another; ask again");
            }
        }
        let strangers = self.cluster.about_strangers(&self.options.endpoints);
        if strangers.is_empty() {
            return status;
        }
        Status::new(status.code(), format!("{}{strangers}", status.message()))
    }

    fn refused(&self, status: &Status) -> Fault {
        let mut fault = fault::from_status(CONNECTING, status);
        fault.message = format!("{} ({})", fault.message, self.options.endpoints.join(", "));
        fault
    }
}
