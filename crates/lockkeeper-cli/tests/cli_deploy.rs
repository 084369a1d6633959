//! The files of `deploy/`: what they say is run here as they say it, with a real Redis. Only what no test can have is
//! replaced: the host of Redis, ports, and where secrets are mounted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::serving::Serving;
use common::{Store, code, output, send, text, within};
use lockkeeper_servers::{Redis, RedisOptions};
use rustix::process::Signal;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Every document of a file. The system's Python has the package.
fn documents(file: &str) -> Vec<Value> {
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let read =
        Command::new("/usr/bin/python3").args(["-c", script, file]).current_dir(folder()).output().unwrap();
    let hint = "if yaml is missing: apt-get install python3-yaml";
    assert!(read.status.success(), "{}{hint}", text(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The names in a mapping are among those that its kind has.
fn has_only(of: &Value, known: &str) {
    let known: BTreeSet<&str> = known.split_whitespace().collect();
    for name in of.as_object().unwrap().keys() {
        assert!(known.contains(name.as_str()), "`{name}` is none of {known:?}");
    }
}

/// Start a server as it is said there; a word is replaced by another, and each must be there.
fn serving(store: &Store, call: &[String], replaced: &[(&str, &str)]) -> Serving {
    let mut call = call.to_vec();
    for (word, other) in replaced {
        let at =
            call.iter().position(|it| it.contains(word)).unwrap_or_else(|| panic!("no {word} in {call:?}"));
        call[at] = call[at].replace(word, other);
    }
    let mut serving = Serving::start(&mut store.lockkeeper(call));
    let port = serving.told("listening on http://").rsplit(':').next().unwrap().to_owned();
    (serving.address, serving.token) = (format!("127.0.0.1:{port}"), "a-token-of-the-tests".into());
    serving
}

/// A store that is this server, and a token beside it.
fn store_at(redis: &Redis) -> (Store, String) {
    let store = Store::at(redis.url());
    let token = store.path("token");
    std::fs::write(&token, "a-token-of-the-tests\n").unwrap();
    let token = token.display().to_string();
    (store, token)
}

fn ends(mut serving: Serving) {
    send(serving.child.id(), Signal::TERM);
    assert_eq!(within("it ends", move || serving.child.wait().unwrap()).code(), Some(0));
}

/// What the command says is its default.
fn default_address() -> String {
    let help = text(&Store::new().output(["serve", "--help"]).stdout);
    let listen = help.split_once("--listen").unwrap().1;
    listen.split_once("[default: ").unwrap().1.split(']').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_compose_file_serves_locks_from_a_redis_that_forgets_none() {
    let compose = documents("compose.yaml").remove(0);
    has_only(&compose, "services networks volumes secrets");
    let (redis, ours) = (&compose["services"]["redis"], &compose["services"]["lockkeeper"]);
    has_only(redis, "image command volumes networks");
    has_only(ours, "build environment command secrets depends_on restart stop_grace_period networks");
    // Who finds whom by which name.
    assert_eq!(ours["environment"]["LOCKKEEPER_URL"], "redis://redis");
    assert_eq!(words(&ours["depends_on"]), ["redis"]);
    assert_eq!(words(&ours["networks"]), words(&redis["networks"]));
    assert!(compose["networks"].as_object().unwrap().contains_key(&words(&ours["networks"])[0]));
    let volume = words(&redis["volumes"]).remove(0);
    assert!(compose["volumes"].as_object().unwrap().contains_key(volume.split(':').next().unwrap()));
    let secret = words(&ours["secrets"]).remove(0);
    assert_eq!(compose["secrets"][&secret]["file"], format!("./{secret}"));
    // What is built, and what runs in it.
    has_only(&ours["build"], "context dockerfile");
    let root = folder().join(ours["build"]["context"].as_str().unwrap());
    let image = std::fs::read_to_string(root.join(ours["build"]["dockerfile"].as_str().unwrap())).unwrap();
    assert!(image.contains("ENTRYPOINT [\"/usr/local/bin/lockkeeper\"]"), "{image}");
    assert!(image.contains("serve,"), "{image}");

    let mut options = RedisOptions::default();
    let server = words(&redis["command"]);
    assert_eq!(server[0], "redis-server");
    for pair in server[1..].chunks(2) {
        options = options.set(pair[0].strip_prefix("--").unwrap(), &pair[1]);
    }
    let redis = Redis::start(options).await.unwrap();
    let (store, token) = store_at(&redis);
    tokio::task::spawn_blocking(move || {
        let said = output(&mut store.lockkeeper(["doctor", "--strict"]));
        assert_eq!(code(&said), 0, "{}{}", text(&said.stdout), text(&said.stderr));
        let mounted = format!("/run/secrets/{secret}");
        let mut serving =
            serving(&store, &words(&ours_command(&compose)), &[(":7765", ":0"), (&mounted, &token)]);
        let granted = serving.ask("POST", "/v1/locks/x?wait=0", "granted").0;
        assert!(granted.starts_with("HTTP/1.1 200"), "{granted}");
        // Others call it by the name of its service.
        serving.called = "lockkeeper:7765".into();
        let shown = serving.ask("GET", "/v1/locks/x", "}").0;
        assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
        serving.called = "elsewhere:7765".into();
        assert!(serving.ask("GET", "/v1/locks/x", "}").0.starts_with("HTTP/1.1 421"));
        ends(serving);
    })
    .await
    .unwrap();
}

fn ours_command(compose: &Value) -> Value {
    compose["services"]["lockkeeper"]["command"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manifest_runs_a_server_beside_the_program_that_leads_by_it() {
    let all = documents("kubernetes-leader.yaml");
    let kinds: Vec<_> = all.iter().map(|it| (it["apiVersion"].as_str(), it["kind"].as_str())).collect();
    assert_eq!(kinds, [(Some("v1"), Some("Secret")), (Some("apps/v1"), Some("Deployment"))]);
    let (secret, pod) = (&all[0], &all[1]["spec"]["template"]["spec"]);
    fields_are_those_of_kubernetes(&all);
    let (sidecar, program) = (&pod["initContainers"][0], &pod["containers"][0]);
    assert_eq!(sidecar["restartPolicy"], "Always", "that makes it a sidecar");
    // Each setting is that of the secret.
    for env in sidecar["env"].as_array().unwrap().iter().chain(program["env"].as_array().unwrap()) {
        let from = &env["valueFrom"]["secretKeyRef"];
        if from.is_object() {
            assert_eq!(from["name"], secret["metadata"]["name"]);
            assert!(secret["stringData"].get(from["key"].as_str().unwrap()).is_some(), "{from}");
        }
    }
    let url = secret["stringData"]["url"].as_str().unwrap();
    assert!(url.starts_with("redis://"), "{url}");
    // The token is where the server looks for it, and it may read it.
    let (mount, volume) = (&sidecar["volumeMounts"][0], &pod["volumes"][0]);
    assert_eq!(mount["name"], volume["name"]);
    assert_eq!(volume["secret"]["secretName"], secret["metadata"]["name"]);
    assert_eq!(volume["secret"]["defaultMode"], 0o444);
    let item = &volume["secret"]["items"][0];
    assert!(secret["stringData"].get(item["key"].as_str().unwrap()).is_some());
    let token_file = format!("{}/{}", mount["mountPath"].as_str().unwrap(), item["path"].as_str().unwrap());
    // The program finds the server where it listens.
    assert_eq!(program["env"][0]["value"], format!("http://{}", default_address()));
    let labels = &all[1]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(*labels, all[1]["spec"]["selector"]["matchLabels"]);

    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let (store, token) = store_at(&redis);
    let mut call = words(&sidecar["args"]);
    // It names no address; two of this machine's tests cannot have the same.
    call.extend(["--listen".into(), "127.0.0.1:0".into()]);
    tokio::task::spawn_blocking(move || {
        let serving = serving(&store, &call, &[(&token_file, &token)]);
        let (granted, leads) =
            serving.ask("POST", "/v1/leaders/scheduler?value=10.0.0.7:8080&ttl=10s", "granted");
        assert!(granted.starts_with("HTTP/1.1 200"), "{granted}");
        let (leader, _) = serving.ask("GET", "/v1/leaders/scheduler", "}");
        assert!(leader.contains("\"value\":\"10.0.0.7:8080\""), "{leader}");
        drop(leads);
        ends(serving);
    })
    .await
    .unwrap();
}

/// Field by field, as the reference of Kubernetes 1.29 (the first with sidecars that are on by default) has them.
fn fields_are_those_of_kubernetes(all: &[Value]) {
    let known = [
        ("", "apiVersion kind metadata stringData spec"),
        ("/metadata", "name"),
        ("/spec", "replicas selector template"),
        ("/spec/selector", "matchLabels"),
        ("/spec/template", "metadata spec"),
        ("/spec/template/metadata", "labels"),
        ("/spec/template/spec", "terminationGracePeriodSeconds initContainers containers volumes"),
        (
            "/spec/template/spec/initContainers/0",
            "name image restartPolicy args env volumeMounts securityContext",
        ),
        ("/spec/template/spec/initContainers/0/env/0", "name valueFrom"),
        ("/spec/template/spec/initContainers/0/env/0/valueFrom", "secretKeyRef"),
        ("/spec/template/spec/initContainers/0/env/0/valueFrom/secretKeyRef", "name key"),
        ("/spec/template/spec/initContainers/0/volumeMounts/0", "name mountPath readOnly"),
        (
            "/spec/template/spec/initContainers/0/securityContext",
            "allowPrivilegeEscalation readOnlyRootFilesystem runAsNonRoot runAsUser",
        ),
        ("/spec/template/spec/containers/0", "name image env"),
        ("/spec/template/spec/containers/0/env/0", "name value"),
        ("/spec/template/spec/containers/0/env/1", "name valueFrom"),
        ("/spec/template/spec/containers/0/env/1/valueFrom", "secretKeyRef"),
        ("/spec/template/spec/containers/0/env/1/valueFrom/secretKeyRef", "name key"),
        ("/spec/template/spec/containers/0/env/2", "name valueFrom"),
        ("/spec/template/spec/containers/0/env/2/valueFrom", "fieldRef"),
        ("/spec/template/spec/containers/0/env/2/valueFrom/fieldRef", "fieldPath"),
        ("/spec/template/spec/volumes/0", "name secret"),
        ("/spec/template/spec/volumes/0/secret", "secretName defaultMode items"),
        ("/spec/template/spec/volumes/0/secret/items/0", "key path"),
    ];
    // What has names of its user's own, or was looked at already.
    let free = ["/stringData", "/spec/selector/matchLabels", "/spec/template/metadata/labels"];
    for document in all {
        for path in paths(document, String::new()).into_iter().filter(|it| !free.contains(&it.as_str())) {
            let fields =
                known.iter().find(|it| it.0 == path).unwrap_or_else(|| panic!("{path} is not known"));
            has_only(document.pointer(&path).unwrap(), fields.1);
        }
    }
}

/// Where a mapping is.
fn paths(of: &Value, at: String) -> Vec<String> {
    let below: Vec<String> = match of {
        Value::Object(fields) => {
            fields.iter().flat_map(|(name, it)| paths(it, format!("{at}/{name}"))).collect()
        }
        Value::Array(all) => {
            all.iter().enumerate().flat_map(|(place, it)| paths(it, format!("{at}/{place}"))).collect()
        }
        _ => Vec::new(),
    };
    let here = if of.is_object() { vec![at] } else { Vec::new() };
    here.into_iter().chain(below).collect()
}

/// What it says is run; systemd puts the credential where the variable says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unit_serves_locks_from_the_redis_of_its_environment() {
    let unit = include_str!("../../../deploy/lockkeeper.service");
    let call = unit.lines().find_map(|it| it.strip_prefix("ExecStart=/usr/local/bin/lockkeeper ")).unwrap();
    let call: Vec<String> = call.split(' ').map(str::to_owned).collect();
    assert!(unit.contains("LoadCredential=token:"), "the credential is called `token`");
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let (store, token) = store_at(&redis);
    tokio::task::spawn_blocking(move || {
        let replaced =
            [("127.0.0.1:7765", "127.0.0.1:0"), ("${CREDENTIALS_DIRECTORY}/token", token.as_str())];
        let serving = serving(&store, &call, &replaced);
        let (granted, _held) = serving.ask("POST", "/v1/locks/x?wait=0", "granted");
        assert!(granted.starts_with("HTTP/1.1 200"), "{granted}");
        ends(serving);
    })
    .await
    .unwrap();
}

/// What systemd says of the unit; the command is where this test finds it.
#[test]
fn systemd_understands_the_unit() {
    let unit = include_str!("../../../deploy/lockkeeper.service");
    let (folder, ours) = (tempfile::TempDir::new().unwrap(), "/usr/local/bin/lockkeeper");
    assert!(unit.contains(ours));
    let verified = |unit: &str| {
        let path = folder.path().join("lockkeeper.service");
        std::fs::write(&path, unit.replace(ours, env!("CARGO_BIN_EXE_lockkeeper"))).unwrap();
        let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output();
        verify.expect("systemd-analyze is here; if not: apt-get install systemd")
    };
    let verdict = verified(unit);
    assert_eq!((verdict.status.success(), text(&verdict.stderr).as_str()), (true, ""));
    let wrong = verified(&unit.replace("Restart=", "Restrat="));
    assert!(text(&wrong.stderr).contains("Restrat"), "a mistake is seen: {}", text(&wrong.stderr));
}
