-- Lockkeeper on MySQL and MariaDB, `mode=session`: version 101. Safe to run again.
--
-- A lock is a named lock (GET_LOCK) of a session; nothing is written when it is taken or given back. These tables say
-- whose sessions there are, what must outlive a restart, and what operators want to see.
--
-- lockkeeper_store           its version tells programs of the other mode that this database is not theirs.
-- lockkeeper_session_store   `id` is in the names of our locks, so that two databases of a server never meet. No fence is
--                            given above `ceiling`. Before `quiet_until` nobody is let in: a server that forgot its sessions
--                            has started, and `quiet` is how long its holders may believe in their locks.
-- lockkeeper_session_member  one row for each session, on disk before it takes a lock: how long its locks may be believed in
--                            after the server is gone. It holds the named lock of its id.
-- lockkeeper_session_epoch   the server as it runs. In memory: a restart empties it, by which we know; another server has
--                            another name. A fence is `base` and what UUID_SHORT(), which counts in memory and never goes
--                            back, has gone on since `origin`.
-- lockkeeper_session_claim   who holds (counter > 0) or waits, for operators: written a moment later, and not believed.
-- lockkeeper_session_broken  which sessions shall give which lock back, because an operator says so.

SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, completion_type = 0,
    sql_safe_updates = 0, sql_select_limit = 18446744073709551615;

CREATE TABLE IF NOT EXISTS lockkeeper_store (
    one INT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    cleaned BIGINT NOT NULL,
    upgraded BIGINT NOT NULL DEFAULT 0,
    quiet BIGINT NOT NULL DEFAULT 0,
    swept BINARY(32)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_session_store (
    one INT NOT NULL PRIMARY KEY,
    id BINARY(16) NOT NULL,
    ceiling BIGINT NOT NULL,
    quiet BIGINT NOT NULL,
    quiet_until BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_session_member (
    id BINARY(16) NOT NULL PRIMARY KEY,
    ttl BIGINT NOT NULL,
    conn BIGINT NOT NULL,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid BIGINT NOT NULL,
    KEY lockkeeper_session_member_conn (conn)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_session_epoch (
    one INT NOT NULL PRIMARY KEY,
    server BINARY(32) NOT NULL,
    base BIGINT NOT NULL,
    origin BIGINT NOT NULL
) ENGINE = MEMORY;

CREATE TABLE IF NOT EXISTS lockkeeper_session_claim (
    id BINARY(16) NOT NULL PRIMARY KEY,
    `lock` BINARY(32) NOT NULL,
    conn BIGINT NOT NULL,
    counter BIGINT NOT NULL,
    since BIGINT NOT NULL,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    KEY lockkeeper_session_claim_lock (`lock`),
    KEY lockkeeper_session_claim_conn (conn),
    KEY lockkeeper_session_claim_counter (counter)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_session_broken (
    conn BIGINT NOT NULL,
    `lock` BINARY(32) NOT NULL,
    PRIMARY KEY (conn, `lock`)
) ENGINE = InnoDB;

INSERT IGNORE INTO lockkeeper_session_store VALUES (1, UNHEX(REPLACE(UUID(), '-', '')), 0, 0, 0);

INSERT IGNORE INTO lockkeeper_store (one, version, cleaned) VALUES (1, 101, 0);
