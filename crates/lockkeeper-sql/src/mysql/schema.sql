-- Lockkeeper on MySQL and MariaDB, schema version 3. Safe to run again, with the client `mysql` or `mariadb`.
--
-- lockkeeper_lock   one row for each lock in use. `lock` is the SHA-256 of the name. `counter` is the last number
--                   given; it never falls behind the clock in milliseconds, so that it grows even if the row, the
--                   table or a failover's last commits are lost. A holder without company stands in this row: `id`
--                   is its claim, `seq` the number of its grant. Taking a free lock and giving it back then writes
--                   one row of one table. Before `closed` that short way is closed to whoever comes; while there
--                   are rows in lockkeeper_claim that is for ever.
-- lockkeeper_claim  one row for each claim that holds or waits in company. `seq` is its number in line; `counter` is
--                   that of its grant, 0 until it is given. Times are microseconds since 1970 by the server's clock.
-- lockkeeper_store  one row about the store itself. Before `quiet` nobody is let in. `swept` is how far the last
--                   cleaning came.
--
-- Whoever changes a line updates the lock's row first, so that changes of one line happen one after the other. As
-- long as a lock has rows in lockkeeper_claim, `id` is NULL: a claim is in one place, and moves only from its
-- lock's row to lockkeeper_claim. Of a line the holders come first: those from `head` to `edge` hold, those behind
-- `edge` wait. So nobody has to read the whole line, nor rows that are deleted and not yet purged.
-- A renewal, and a waiter that keeps its place, change only their own row.
--
-- The clock is UTC_TIMESTAMP, which no time zone and no daylight saving bends; UNIX_TIMESTAMP(NOW(6)) would
-- pass through the session's time zone and repeat an hour each autumn. In a procedure it moves on from
-- statement to statement, in a function it would stand still.

-- A procedure keeps the mode of the session that made it.
SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, completion_type = 0,
    sql_safe_updates = 0, sql_select_limit = 18446744073709551615;

CREATE TABLE IF NOT EXISTS lockkeeper_lock (
    `lock` BINARY(32) NOT NULL PRIMARY KEY,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    counter BIGINT NOT NULL,
    closed BIGINT NOT NULL DEFAULT @QUIET@,
    id BINARY(16),
    seq BIGINT,
    expires BIGINT,
    since BIGINT,
    ttl BIGINT,
    weight BIGINT,
    capacity BIGINT,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    pid BIGINT,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    head BIGINT NOT NULL DEFAULT 0,
    edge BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_claim (
    `lock` BINARY(32) NOT NULL,
    seq BIGINT NOT NULL,
    id BINARY(16) NOT NULL,
    held BOOLEAN NOT NULL,
    counter BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    capacity BIGINT NOT NULL,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid BIGINT NOT NULL,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    PRIMARY KEY (`lock`, seq),
    KEY lockkeeper_claim_id (id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_store (
    one INT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    cleaned BIGINT NOT NULL,
    upgraded BIGINT NOT NULL DEFAULT 0,
    quiet BIGINT NOT NULL DEFAULT 0,
    swept BINARY(32)
) ENGINE = InnoDB;

DELIMITER //

DROP PROCEDURE IF EXISTS lockkeeper_turn_1 //
DROP PROCEDURE IF EXISTS lockkeeper_leave_1 //
DROP PROCEDURE IF EXISTS lockkeeper_break_1 //
DROP PROCEDURE IF EXISTS lockkeeper_clean_1 //
DROP PROCEDURE IF EXISTS lockkeeper_settle_1 //
DROP PROCEDURE IF EXISTS lockkeeper_turn_2 //
DROP PROCEDURE IF EXISTS lockkeeper_leave_2 //
DROP PROCEDURE IF EXISTS lockkeeper_break_2 //
DROP PROCEDURE IF EXISTS lockkeeper_clean_2 //
DROP PROCEDURE IF EXISTS lockkeeper_settle_2 //
DROP PROCEDURE IF EXISTS lockkeeper_gather_2 //
DROP PROCEDURE IF EXISTS lockkeeper_upgrade_2 //

DROP PROCEDURE IF EXISTS lockkeeper_upgrade_3 //
-- Make version 3 of tables of versions 1 and 2, step by step, so that one that was interrupted is finished. Locks
-- that exist in version 1 are closed to the short way, until they are free. Earlier programs find no procedures.
CREATE PROCEDURE lockkeeper_upgrade_3(IN p_quiet BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_store' AND column_name = 'upgraded') THEN
        ALTER TABLE lockkeeper_store ADD COLUMN upgraded BIGINT NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_store' AND column_name = 'quiet') THEN
        ALTER TABLE lockkeeper_store ADD COLUMN quiet BIGINT NOT NULL DEFAULT 0, ADD COLUMN swept BINARY(32);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_lock' AND column_name = 'closed') THEN
        ALTER TABLE lockkeeper_lock
            ADD COLUMN closed BIGINT NOT NULL DEFAULT 9223372036854775807, ADD COLUMN id BINARY(16),
            ADD COLUMN seq BIGINT, ADD COLUMN expires BIGINT, ADD COLUMN since BIGINT, ADD COLUMN ttl BIGINT,
            ADD COLUMN weight BIGINT, ADD COLUMN capacity BIGINT,
            ADD COLUMN host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD COLUMN pid BIGINT,
            ADD COLUMN owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
            ADD COLUMN note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
        ALTER TABLE lockkeeper_lock ALTER COLUMN closed SET DEFAULT 0;
    END IF;
    IF EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_claim' AND column_name = 'slot') THEN
        ALTER TABLE lockkeeper_claim
            DROP PRIMARY KEY, DROP COLUMN slot, ADD PRIMARY KEY (`lock`, seq), ADD KEY lockkeeper_claim_id (id);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_lock' AND column_name = 'edge') THEN
        ALTER TABLE lockkeeper_lock
            ADD COLUMN head BIGINT NOT NULL DEFAULT 0, ADD COLUMN edge BIGINT NOT NULL DEFAULT 0;
    END IF;
    INSERT INTO lockkeeper_store (one, version, cleaned, quiet) VALUES (1, 3, 0, p_quiet)
    ON DUPLICATE KEY UPDATE quiet = GREATEST(quiet, p_quiet);
    IF EXISTS (SELECT 1 FROM lockkeeper_store WHERE one = 1 AND version < 3) THEN
        UPDATE lockkeeper_lock AS l
        SET l.edge = GREATEST(l.edge, COALESCE((
            SELECT MAX(c.seq) FROM lockkeeper_claim AS c WHERE c.`lock` = l.`lock` AND c.held), 0));
        UPDATE lockkeeper_store SET version = 3 WHERE one = 1 AND version < 3;
    END IF;
END //

CALL lockkeeper_upgrade_3(@QUIET@) //

DROP PROCEDURE IF EXISTS lockkeeper_settle_3 //
-- The one rule of who enters, for a line that is locked: forget those who hold and have expired, then let in whoever
-- fits, first come first served, nobody past the first who does not fit or who does not know yet that it is in:
-- counters are given in the order of the line. Whoever enters a room that it has for itself and fills gets its
-- counter, p_number, at once: nobody can come in before it has gone. All others hear theirs when they ask.
CREATE PROCEDURE lockkeeper_settle_3(
    IN p_lock BINARY(32), IN p_id BINARY(16), IN p_number BIGINT,
    OUT o_now BIGINT, OUT o_in_use BIGINT, OUT o_room BIGINT, OUT o_waiting BOOLEAN, OUT o_untold BOOLEAN)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_head, v_edge, v_seq, v_weight, v_capacity, v_expires, v_first BIGINT;
    DECLARE v_id BINARY(16);
    SET o_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), o_waiting = FALSE;
    SELECT head, edge INTO v_head, v_edge FROM lockkeeper_lock WHERE `lock` = p_lock;
    -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE, and the SELECT
    -- below, which looks afterwards, counts it.
    DELETE FROM lockkeeper_claim
    WHERE `lock` = p_lock AND v_head <= seq AND seq <= v_edge AND expires <= o_now;
    SELECT COALESCE(SUM(weight), 0), COALESCE(MIN(capacity), 4294967295),
        COALESCE(MAX(counter = 0 AND id <> p_id), FALSE), MIN(seq)
    INTO o_in_use, o_room, o_untold, v_first
    FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq <= v_edge;
    -- Set when lost tables are made anew: old holders must learn of it first.
    IF o_now < (SELECT quiet FROM lockkeeper_store WHERE one = 1) THEN
        SET o_room = 0;
    END IF;
    admitting: LOOP
        SET v_seq = NULL;
        SELECT seq, weight, capacity, id, expires INTO v_seq, v_weight, v_capacity, v_id, v_expires
        FROM lockkeeper_claim WHERE `lock` = p_lock AND v_edge < seq ORDER BY seq LIMIT 1;
        IF v_seq IS NULL THEN
            LEAVE admitting;
        END IF;
        IF v_expires <= o_now THEN
            -- Unless it keeps its place at this moment; then it is looked at again.
            DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_seq AND expires <= o_now;
            ITERATE admitting;
        END IF;
        SET o_waiting = TRUE;
        IF o_untold OR LEAST(o_room, v_capacity) < o_in_use + v_weight THEN
            LEAVE admitting;
        END IF;
        UPDATE lockkeeper_claim
        SET held = TRUE, since = o_now, counter = IF(o_in_use = 0 AND LEAST(o_room, v_capacity) = v_weight, p_number, 0)
        WHERE `lock` = p_lock AND seq = v_seq;
        SET o_untold = v_id <> p_id AND NOT (o_in_use = 0 AND LEAST(o_room, v_capacity) = v_weight);
        SET o_in_use = o_in_use + v_weight, o_room = LEAST(o_room, v_capacity), o_waiting = FALSE,
            v_edge = v_seq, v_first = COALESCE(v_first, v_seq);
    END LOOP;
    UPDATE lockkeeper_lock
    SET head = COALESCE(v_first, v_edge), edge = v_edge,
        closed = IF(v_first IS NULL AND v_seq IS NULL, 0, 9223372036854775807)
    WHERE `lock` = p_lock;
END //

DROP PROCEDURE IF EXISTS lockkeeper_gather_3 //
-- Move a holder without company to the others, for a line that is locked, and close the short way.
CREATE PROCEDURE lockkeeper_gather_3(IN p_lock BINARY(32))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    INSERT INTO lockkeeper_claim
        (`lock`, seq, id, held, counter, expires, since, ttl, weight, capacity, host, pid, owner, note)
    SELECT `lock`, seq, id, TRUE, seq, expires, since, ttl, weight, capacity, host, pid, owner, note
    FROM lockkeeper_lock WHERE `lock` = p_lock AND id IS NOT NULL;
    IF 0 < ROW_COUNT() THEN
        UPDATE lockkeeper_lock SET closed = 9223372036854775807, id = NULL, head = seq, edge = seq
        WHERE `lock` = p_lock;
    END IF;
END //

DROP PROCEDURE IF EXISTS lockkeeper_turn_3 //
-- Take a place, or keep it, and tell whether it is our turn.
-- Answers held, counter, wanted, number in line, how many stand before us, how many of them wait, microseconds
-- until a holder expires, whether we stand in the lock's own row, whether this session holds a named lock for us from
-- now on, and who stands right before us if it has such a lock. p_bell: 0 nobody wants to know, 1 take such a lock if
-- we must wait, 2 we have one.
CREATE PROCEDURE lockkeeper_turn_3(
    IN p_lock BINARY(32), IN p_id BINARY(16), IN p_name VARCHAR(512) CHARACTER SET utf8mb4, IN p_ttl BIGINT,
    IN p_weight BIGINT, IN p_capacity BIGINT, IN p_patient BOOLEAN,
    IN p_host VARCHAR(256) CHARACTER SET utf8mb4, IN p_pid BIGINT,
    IN p_owner VARCHAR(256) CHARACTER SET utf8mb4, IN p_note VARCHAR(256) CHARACTER SET utf8mb4, IN p_bell INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
asking: BEGIN
    DECLARE v_number, v_now, v_in_use, v_room, v_mine, v_counter BIGINT;
    DECLARE v_head, v_edge, v_ahead, v_ahead_waiting, v_expiry BIGINT DEFAULT 0;
    DECLARE v_waiting, v_untold, v_held, v_wanted, v_bell BOOLEAN DEFAULT FALSE;
    DECLARE v_before BINARY(16) DEFAULT NULL;
    -- An error must not leave a transaction open, as a lock wait timeout would.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    -- LAST_INSERT_ID(x) answers x and remembers it for LAST_INSERT_ID().
    INSERT INTO lockkeeper_lock (`lock`, name, counter)
    VALUES (p_lock, p_name,
        LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000))
    ON DUPLICATE KEY UPDATE counter = LAST_INSERT_ID(
        GREATEST(counter + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000));
    SET v_number = LAST_INSERT_ID();
    CALL lockkeeper_gather_3(p_lock);
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SELECT head INTO v_head FROM lockkeeper_lock WHERE `lock` = p_lock;
    IF NOT EXISTS (SELECT 1 FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq)
            AND (SELECT quiet FROM lockkeeper_store WHERE one = 1) <= v_now THEN
        -- Nobody holds and nobody waits.
        UPDATE lockkeeper_lock
        SET closed = 0, id = p_id, seq = v_number, expires = v_now + p_ttl, since = v_now, ttl = p_ttl,
            weight = p_weight, capacity = p_capacity, host = p_host, pid = p_pid, owner = p_owner, note = p_note
        WHERE `lock` = p_lock;
        COMMIT AND NO CHAIN NO RELEASE;
        SELECT 1, v_number, 0, v_number, 0, 0, 0, 1, 0, NULL;
        LEAVE asking;
    END IF;
    -- A place unheard of for its ttl is nobody's, not even ours.
    DELETE FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock AND expires <= v_now;
    CALL lockkeeper_settle_3(p_lock, p_id, v_number, v_now, v_in_use, v_room, v_waiting, v_untold);
    SELECT seq, held, counter INTO v_mine, v_held, v_counter
    FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock;
    IF v_mine IS NULL THEN
        SET v_held = NOT v_waiting AND NOT v_untold AND v_in_use + p_weight <= LEAST(v_room, p_capacity);
        SET v_counter = IF(v_held, v_number, 0), v_mine = v_number;
        IF v_held OR p_patient THEN
            INSERT INTO lockkeeper_claim
                (`lock`, seq, id, held, counter, expires, since, ttl, weight, capacity, host, pid, owner, note)
            VALUES (p_lock, v_number, p_id, v_held, v_counter, v_now + p_ttl, v_now, p_ttl, p_weight,
                p_capacity, p_host, p_pid, p_owner, p_note);
            UPDATE lockkeeper_lock
            SET closed = 9223372036854775807, head = IF(v_held AND v_in_use = 0, v_number, head),
                edge = IF(v_held, v_number, edge)
            WHERE `lock` = p_lock;
            IF p_bell = 1 AND NOT v_held THEN
                BEGIN
                    -- Some servers have none, such as Galera's.
                    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_bell = FALSE;
                    SET v_bell = COALESCE(GET_LOCK(CONCAT('lockkeeper/', HEX(p_id)), 0), 0);
                END;
            END IF;
        END IF;
    ELSEIF v_held OR p_patient THEN
        -- Whoever left has let us in, and now we are told: of several in one room, the last told has the largest.
        IF v_held AND v_counter = 0 THEN
            SET v_counter = v_number;
        END IF;
        UPDATE lockkeeper_claim SET expires = v_now + p_ttl, counter = v_counter
        WHERE `lock` = p_lock AND seq = v_mine;
    ELSE
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_mine;
        CALL lockkeeper_settle_3(p_lock, p_id, v_number, v_now, v_in_use, v_room, v_waiting, v_untold);
    END IF;
    SELECT head, edge INTO v_head, v_edge FROM lockkeeper_lock WHERE `lock` = p_lock;
    COMMIT AND NO CHAIN NO RELEASE;
    -- The rest is told, not decided, and keeps nobody waiting.
    IF v_held THEN
        SET v_wanted = EXISTS (SELECT 1 FROM lockkeeper_claim WHERE `lock` = p_lock AND v_edge < seq AND seq <> v_mine);
    ELSE
        SELECT COUNT(*), COALESCE(SUM(v_edge < seq), 0) INTO v_ahead, v_ahead_waiting
        FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq < v_mine AND v_now < expires;
        SELECT COALESCE(MIN(expires), v_now) - v_now INTO v_expiry
        FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq <= v_edge;
        IF v_bell OR p_bell = 2 THEN
            SELECT id INTO v_before FROM lockkeeper_claim
            WHERE `lock` = p_lock AND v_head <= seq AND seq < v_mine ORDER BY seq DESC LIMIT 1;
            IF IS_USED_LOCK(CONCAT('lockkeeper/', HEX(v_before))) IS NULL THEN
                SET v_before = NULL;
            END IF;
        END IF;
    END IF;
    SELECT v_held, v_counter, v_wanted, v_mine, v_ahead, v_ahead_waiting, v_expiry, 0, v_bell, v_before;
END //

DROP PROCEDURE IF EXISTS lockkeeper_leave_3 //
-- Give up the lock, or the place, or nothing; let in whoever is next. With p_bell, then also our named lock, for which
-- whoever stands behind us waits; answers whether this session had it.
CREATE PROCEDURE lockkeeper_leave_3(IN p_lock BINARY(32), IN p_id BINARY(16), IN p_bell BOOLEAN)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_in_use, v_room BIGINT;
    DECLARE v_waiting, v_untold BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    UPDATE lockkeeper_lock
    SET counter = LAST_INSERT_ID(
            GREATEST(counter + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)),
        id = IF(id = p_id, NULL, id)
    WHERE `lock` = p_lock;
    IF 0 < ROW_COUNT() THEN
        DELETE FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock;
        CALL lockkeeper_settle_3(p_lock, p_id, LAST_INSERT_ID(), v_now, v_in_use, v_room, v_waiting, v_untold);
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    IF p_bell THEN
        SELECT COALESCE(RELEASE_LOCK(CONCAT('lockkeeper/', HEX(p_id))), 0);
    END IF;
END //

DROP PROCEDURE IF EXISTS lockkeeper_break_3 //
-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE PROCEDURE lockkeeper_break_3(IN p_lock BINARY(32))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_in_use, v_room, v_number, v_head, v_edge BIGINT;
    DECLARE v_waiting, v_untold BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    UPDATE lockkeeper_lock
    SET counter = LAST_INSERT_ID(
        GREATEST(counter + 2, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000))
    WHERE `lock` = p_lock;
    IF 0 < ROW_COUNT() THEN
        SET v_number = LAST_INSERT_ID();
        CALL lockkeeper_gather_3(p_lock);
        CALL lockkeeper_settle_3(p_lock, '', v_number - 1, v_now, v_in_use, v_room, v_waiting, v_untold);
        SELECT head, edge INTO v_head, v_edge FROM lockkeeper_lock WHERE `lock` = p_lock;
        SELECT l.name, v_now, c.held, c.counter, c.since, c.expires, c.weight, c.host, c.pid, c.owner, c.note,
            c.`lock`, c.seq, c.capacity
        FROM lockkeeper_claim AS c JOIN lockkeeper_lock AS l ON l.`lock` = c.`lock`
        WHERE c.`lock` = p_lock AND v_head <= c.seq AND c.seq <= v_edge ORDER BY c.seq;
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq <= v_edge;
        CALL lockkeeper_settle_3(p_lock, '', v_number, v_now, v_in_use, v_room, v_waiting, v_untold);
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
END //

DROP PROCEDURE IF EXISTS lockkeeper_clean_3 //
-- Remove what dead processes left, and lock rows that nobody has used for p_idle. Does nothing if somebody cleaned
-- less than p_every ago; all processes may call it. Looks at p_most locks at most, in the order of their hashes, and
-- the next call goes on from there. Answers claims removed, lock rows removed, whether there is more to look at.
CREATE PROCEDURE lockkeeper_clean_3(IN p_every BIGINT, IN p_idle BIGINT, IN p_most INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_began BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    DECLARE v_from, v_to, v_stale BINARY(32) DEFAULT NULL;
    DECLARE v_claims, v_locks, v_seen BIGINT DEFAULT 0;
    DECLARE v_now, v_in_use, v_room BIGINT;
    DECLARE v_waiting, v_untold, v_due BOOLEAN DEFAULT FALSE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT TRUE, swept INTO v_due, v_from FROM lockkeeper_store
    WHERE one = 1 AND cleaned <= v_began - p_every FOR UPDATE;
    IF v_due THEN
        SELECT COUNT(*), MAX(slice.`lock`) INTO v_seen, v_to FROM (
            SELECT `lock` FROM lockkeeper_lock WHERE v_from IS NULL OR v_from < `lock` ORDER BY `lock` LIMIT p_most
        ) AS slice;
        -- Once through all of them, there is nothing to do for p_every.
        UPDATE lockkeeper_store
        SET cleaned = IF(v_seen < p_most, v_began, cleaned), swept = IF(v_seen < p_most, NULL, v_to) WHERE one = 1;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    IF v_to IS NOT NULL THEN
        cleaning: LOOP
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            START TRANSACTION;
            SELECT MIN(`lock`) INTO v_stale FROM lockkeeper_claim
            WHERE expires <= v_began AND (COALESCE(v_stale, v_from) IS NULL OR COALESCE(v_stale, v_from) < `lock`)
                AND `lock` <= v_to;
            IF v_stale IS NULL THEN
                LEAVE cleaning;
            END IF;
            UPDATE lockkeeper_lock SET counter = LAST_INSERT_ID(counter + 1) WHERE `lock` = v_stale;
            DELETE FROM lockkeeper_claim WHERE `lock` = v_stale AND expires <= v_began;
            SET v_claims = v_claims + ROW_COUNT();
            CALL lockkeeper_settle_3(
                v_stale, '', LAST_INSERT_ID(), v_now, v_in_use, v_room, v_waiting, v_untold);
            COMMIT AND NO CHAIN NO RELEASE;
        END LOOP;
        -- Holders without company. Whoever is renewed at this moment is spared.
        UPDATE lockkeeper_lock SET id = NULL
        WHERE (v_from IS NULL OR v_from < `lock`) AND `lock` <= v_to AND id IS NOT NULL AND expires <= v_began;
        SET v_claims = v_claims + ROW_COUNT();
        COMMIT AND NO CHAIN NO RELEASE;
        -- A turn that takes such a row at this moment gives it a present counter, and the row is then spared.
        DELETE l FROM lockkeeper_lock AS l JOIN (
            SELECT i.`lock` FROM lockkeeper_lock AS i LEFT JOIN lockkeeper_claim AS c ON c.`lock` = i.`lock`
            WHERE (v_from IS NULL OR v_from < i.`lock`) AND i.`lock` <= v_to
                AND i.counter < (v_began - p_idle) DIV 1000 AND i.id IS NULL AND c.`lock` IS NULL
        ) AS idle ON idle.`lock` = l.`lock` WHERE l.counter < (v_began - p_idle) DIV 1000 AND l.id IS NULL;
        SET v_locks = ROW_COUNT();
        COMMIT AND NO CHAIN NO RELEASE;
    END IF;
    SELECT v_claims, v_locks, v_to IS NOT NULL AND p_most <= v_seen;
END //

DELIMITER ;
