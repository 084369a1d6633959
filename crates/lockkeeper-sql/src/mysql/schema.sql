-- Lockkeeper on MySQL and MariaDB, schema version 4. Safe to run again, with the client `mysql` or `mariadb`.
--
-- lockkeeper_lock   one row for each lock in use. `lock` is the SHA-256 of the name. `counter` is the last number
--                   given; it never falls behind the clock in milliseconds, so that it grows even if the row, the
--                   table or a failover's last commits are lost. A holder without company stands in this row: `id`
--                   is its claim, `seq` the number of its grant. Taking a free lock and giving it back then writes
--                   one row of one table. Before `closed` that short way is closed to whoever comes; while there
--                   are rows in lockkeeper_claim that is for ever.
-- lockkeeper_claim  one row for each claim that holds or waits in company. `seq` is its number in line; `counter` is
--                   that of its grant, 0 until it is let in. Times are microseconds since 1970 by the server's clock.
-- lockkeeper_store  one row about the store itself. Before `quiet` nobody is let in. `swept` is how far the last
--                   cleaning came.
--
-- Whoever changes a line locks the lock's row first, so that changes of one line happen one after the other. As
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
DROP PROCEDURE IF EXISTS lockkeeper_turn_3 //
DROP PROCEDURE IF EXISTS lockkeeper_leave_3 //
DROP PROCEDURE IF EXISTS lockkeeper_break_3 //
DROP PROCEDURE IF EXISTS lockkeeper_clean_3 //
DROP PROCEDURE IF EXISTS lockkeeper_settle_3 //
DROP PROCEDURE IF EXISTS lockkeeper_gather_3 //
DROP PROCEDURE IF EXISTS lockkeeper_upgrade_3 //

DROP PROCEDURE IF EXISTS lockkeeper_upgrade_4 //
-- Make version 4 of tables of versions 1 to 3, step by step, so that one that was interrupted is finished. Locks
-- that exist in version 1 are closed to the short way, until they are free. Earlier programs find no procedures.
CREATE PROCEDURE lockkeeper_upgrade_4(IN p_quiet BIGINT)
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
    INSERT INTO lockkeeper_store (one, version, cleaned, quiet) VALUES (1, 4, 0, p_quiet)
    ON DUPLICATE KEY UPDATE quiet = GREATEST(quiet, p_quiet);
    IF EXISTS (SELECT 1 FROM lockkeeper_store WHERE one = 1 AND version < 3) THEN
        UPDATE lockkeeper_lock AS l
        SET l.edge = GREATEST(l.edge, COALESCE((
            SELECT MAX(c.seq) FROM lockkeeper_claim AS c WHERE c.`lock` = l.`lock` AND c.held), 0));
    END IF;
    UPDATE lockkeeper_store SET version = 4 WHERE one = 1 AND version < 4;
END //

CALL lockkeeper_upgrade_4(@QUIET@) //

DROP PROCEDURE IF EXISTS lockkeeper_settle_4 //
-- The one rule of who enters, for a line that is locked: forget those who hold and have expired, then let in all who
-- fit, first come first served, nobody past the first who does not fit. Each is given its counter, in the order of the
-- line. The caller writes x_counter, x_head and x_edge into the lock's row. A head beyond the edge says that nobody
-- holds. Answers the weight of those who hold, their smallest capacity, when the first of them expires, whether
-- somebody waits who is known not to fit, and whether neither holds nor waits anybody.
CREATE PROCEDURE lockkeeper_settle_4(
    IN p_lock BINARY(32), IN p_now BIGINT,
    INOUT x_counter BIGINT, INOUT x_head BIGINT, INOUT x_edge BIGINT,
    OUT o_in_use BIGINT, OUT o_room BIGINT, OUT o_expires BIGINT, OUT o_waiting BOOLEAN, OUT o_empty BOOLEAN)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_quiet, v_seq, v_weight, v_capacity, v_expires, v_first BIGINT;
    SET o_in_use = 0, o_room = 4294967295, o_expires = NULL, o_waiting = FALSE, o_empty = FALSE;
    IF x_head <= x_edge THEN
        SELECT COALESCE(SUM(weight), 0), COALESCE(MIN(capacity), 4294967295), MIN(expires), MIN(seq)
        INTO o_in_use, o_room, o_expires, v_first
        FROM lockkeeper_claim WHERE `lock` = p_lock AND x_head <= seq AND seq <= x_edge;
        IF o_expires <= p_now THEN
            -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE, and the
            -- SELECT, which looks afterwards, counts it.
            DELETE FROM lockkeeper_claim
            WHERE `lock` = p_lock AND x_head <= seq AND seq <= x_edge AND expires <= p_now;
            SELECT COALESCE(SUM(weight), 0), COALESCE(MIN(capacity), 4294967295), MIN(expires), MIN(seq)
            INTO o_in_use, o_room, o_expires, v_first
            FROM lockkeeper_claim WHERE `lock` = p_lock AND x_head <= seq AND seq <= x_edge;
        END IF;
    END IF;
    -- In a room that is full it does not matter who waits.
    admitting: WHILE o_in_use < o_room DO
        SET v_seq = NULL;
        SELECT s.quiet, c.seq, c.weight, c.capacity, c.expires
        INTO v_quiet, v_seq, v_weight, v_capacity, v_expires
        FROM lockkeeper_claim AS c LEFT JOIN lockkeeper_store AS s ON s.one = 1
        WHERE c.`lock` = p_lock AND x_edge < c.seq ORDER BY c.seq LIMIT 1;
        IF v_seq IS NULL THEN
            SELECT quiet INTO v_quiet FROM lockkeeper_store WHERE one = 1;
            SET o_empty = v_first IS NULL;
        END IF;
        IF p_now < v_quiet THEN
            -- Set when lost tables are made anew: old holders must learn of it first.
            SET o_room = 0, o_empty = FALSE;
        END IF;
        IF v_seq IS NULL OR p_now < v_quiet THEN
            LEAVE admitting;
        END IF;
        IF v_expires <= p_now THEN
            -- Unless it keeps its place at this moment; then it is looked at again.
            DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_seq AND expires <= p_now;
            ITERATE admitting;
        END IF;
        IF LEAST(o_room, v_capacity) < o_in_use + v_weight THEN
            SET o_waiting = TRUE;
            LEAVE admitting;
        END IF;
        SET x_counter = GREATEST(x_counter + 1, p_now DIV 1000);
        UPDATE lockkeeper_claim SET held = TRUE, since = p_now, counter = x_counter
        WHERE `lock` = p_lock AND seq = v_seq;
        SET o_in_use = o_in_use + v_weight, o_room = LEAST(o_room, v_capacity), x_edge = v_seq,
            o_expires = LEAST(COALESCE(o_expires, v_expires), v_expires), v_first = COALESCE(v_first, v_seq);
    END WHILE;
    SET x_head = COALESCE(v_first, x_edge);
END //

DROP PROCEDURE IF EXISTS lockkeeper_gather_4 //
-- Move a holder without company to the others, for a line that is locked.
CREATE PROCEDURE lockkeeper_gather_4(IN p_lock BINARY(32), INOUT x_head BIGINT, INOUT x_edge BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    INSERT INTO lockkeeper_claim
        (`lock`, seq, id, held, counter, expires, since, ttl, weight, capacity, host, pid, owner, note)
    SELECT `lock`, seq, id, TRUE, seq, expires, since, ttl, weight, capacity, host, pid, owner, note
    FROM lockkeeper_lock WHERE `lock` = p_lock;
    SELECT seq, seq INTO x_head, x_edge FROM lockkeeper_lock WHERE `lock` = p_lock;
    UPDATE lockkeeper_lock SET id = NULL WHERE `lock` = p_lock;
END //

DROP PROCEDURE IF EXISTS lockkeeper_behind_4 //
-- Of those who share the lock and wait for p_blocker, which has no named lock, the first holds one for it and looks for all
-- of them. Answers whether this session holds it from now on, and whether another one does.
CREATE PROCEDURE lockkeeper_behind_4(IN p_blocker BINARY(16), IN p_may BOOLEAN, OUT o_mine BOOLEAN, OUT o_there BOOLEAN)
NO SQL SQL SECURITY INVOKER
BEGIN
    -- Some servers have none, such as Galera's.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION SET o_mine = FALSE, o_there = FALSE;
    SET o_mine = IF(p_may, COALESCE(GET_LOCK(CONCAT('lockkeeper/behind/', HEX(p_blocker)), 0), 0), 0);
    SET o_there = IF(o_mine, 0, IS_USED_LOCK(CONCAT('lockkeeper/behind/', HEX(p_blocker))) IS NOT NULL);
END //

DROP PROCEDURE IF EXISTS lockkeeper_turn_4 //
-- Take a place, or keep it, and tell whether it is our turn.
-- Answers held, counter, wanted, number in line, how many stand before us and wait before us (-1: not counted), microseconds
-- until a holder expires, whether we stand in the lock's own row, whether this session holds a named lock for us from now
-- on, the nearest before us that alone keeps us out, if it has such a lock; if it has none, that one if somebody looks for
-- all who wait for it, and whether that is this session from now on. p_bell: 0 nobody wants to know, 1 take such a lock if we
-- must wait, 2 we have one, 3 we need none; 4 more if somebody else may look for us, 8 more if we may look for others.
CREATE PROCEDURE lockkeeper_turn_4(
    IN p_lock BINARY(32), IN p_id BINARY(16), IN p_name VARCHAR(512) CHARACTER SET utf8mb4, IN p_ttl BIGINT,
    IN p_weight BIGINT, IN p_capacity BIGINT, IN p_patient BOOLEAN,
    IN p_host VARCHAR(256) CHARACTER SET utf8mb4, IN p_pid BIGINT,
    IN p_owner VARCHAR(256) CHARACTER SET utf8mb4, IN p_note VARCHAR(256) CHARACTER SET utf8mb4, IN p_bell INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
asking: BEGIN
    DECLARE v_now, v_last, v_head, v_edge, v_in_use, v_room, v_expires, v_mine, v_mine_expires BIGINT;
    DECLARE v_counter, v_ahead, v_ahead_waiting BIGINT DEFAULT 0;
    DECLARE v_alone, v_waiting, v_empty, v_held, v_wanted, v_bell BOOLEAN DEFAULT FALSE;
    DECLARE v_before, v_blocker BINARY(16) DEFAULT NULL;
    DECLARE v_looks, v_looked BOOLEAN DEFAULT FALSE;
    -- An error must not leave a transaction open, as a lock wait timeout would.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT counter, head, edge, id IS NOT NULL INTO v_last, v_head, v_edge, v_alone
    FROM lockkeeper_lock WHERE `lock` = p_lock FOR UPDATE;
    IF v_last IS NULL THEN
        INSERT INTO lockkeeper_lock (`lock`, name, counter) VALUES (p_lock, p_name, 0)
        ON DUPLICATE KEY UPDATE name = p_name;
        SELECT counter, head, edge, id IS NOT NULL INTO v_last, v_head, v_edge, v_alone
        FROM lockkeeper_lock WHERE `lock` = p_lock FOR UPDATE;
    END IF;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    IF v_alone THEN
        CALL lockkeeper_gather_4(p_lock, v_head, v_edge);
    END IF;
    IF v_head = v_edge THEN
        SELECT weight, capacity, expires INTO v_in_use, v_room, v_expires
        FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_edge;
    END IF;
    -- Where one lives that fills the room nothing is to be settled.
    IF NOT COALESCE(v_room <= v_in_use AND v_now < v_expires, FALSE) THEN
        CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
            v_in_use, v_room, v_expires, v_waiting, v_empty);
    END IF;
    SELECT seq, held, counter, expires INTO v_mine, v_held, v_counter, v_mine_expires
    FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock;
    IF v_mine_expires <= v_now AND NOT v_held THEN
        -- A place unheard of for its ttl is nobody's, not even ours.
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_mine;
        SET v_mine = NULL;
    END IF;
    IF v_mine IS NULL THEN
        SET v_last = GREATEST(v_last + 1, v_now DIV 1000), v_mine = v_last;
        IF v_empty THEN
            UPDATE lockkeeper_lock
            SET counter = v_last, closed = 0, id = p_id, seq = v_last, expires = v_now + p_ttl, since = v_now,
                ttl = p_ttl, weight = p_weight, capacity = p_capacity, host = p_host, pid = p_pid, owner = p_owner,
                note = p_note
            WHERE `lock` = p_lock;
            COMMIT AND NO CHAIN NO RELEASE;
            SELECT 1, v_last, 0, v_last, 0, 0, 0, 1, 0, NULL, NULL, 0;
            LEAVE asking;
        END IF;
        SET v_held = NOT v_waiting AND v_in_use + p_weight <= LEAST(v_room, p_capacity);
        SET v_counter = IF(v_held, v_last, 0);
        IF v_held THEN
            SET v_head = IF(v_in_use = 0, v_mine, v_head), v_edge = v_mine;
        END IF;
        IF v_held OR p_patient THEN
            INSERT INTO lockkeeper_claim
                (`lock`, seq, id, held, counter, expires, since, ttl, weight, capacity, host, pid, owner, note)
            VALUES (p_lock, v_mine, p_id, v_held, v_counter, v_now + p_ttl, v_now, p_ttl, p_weight,
                p_capacity, p_host, p_pid, p_owner, p_note);
            IF p_bell MOD 4 = 1 AND NOT v_held THEN
                BEGIN
                    -- Some servers have none, such as Galera's.
                    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_bell = FALSE;
                    SET v_bell = COALESCE(GET_LOCK(CONCAT('lockkeeper/', HEX(p_id)), 0), 0);
                END;
            END IF;
        END IF;
    ELSEIF v_held OR p_patient THEN
        IF v_held AND v_counter = 0 THEN
            -- Let in by version 3, which gave a counter only when asked.
            SET v_last = GREATEST(v_last + 1, v_now DIV 1000), v_counter = v_last;
        END IF;
        UPDATE lockkeeper_claim SET expires = v_now + p_ttl, counter = v_counter
        WHERE `lock` = p_lock AND seq = v_mine;
    ELSE
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_mine;
        CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
            v_in_use, v_room, v_expires, v_waiting, v_empty);
    END IF;
    UPDATE lockkeeper_lock
    SET counter = v_last, head = v_head, edge = v_edge,
        closed = IF(v_empty, 0, 9223372036854775807)
    WHERE `lock` = p_lock;
    COMMIT AND NO CHAIN NO RELEASE;
    -- The rest is told, not decided, and keeps nobody waiting.
    IF v_held THEN
        SET v_wanted = EXISTS (SELECT 1 FROM lockkeeper_claim WHERE `lock` = p_lock AND v_edge < seq AND seq <> v_mine);
    ELSE
        IF v_bell OR 2 <= p_bell MOD 4 THEN
            SELECT id INTO v_blocker FROM lockkeeper_claim
            WHERE `lock` = p_lock AND v_head <= seq AND seq < v_mine AND v_now < expires
                AND LEAST(capacity, p_capacity) < weight + p_weight
            ORDER BY seq DESC LIMIT 1;
            BEGIN
                DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_before = NULL;
                SET v_before = IF(IS_USED_LOCK(CONCAT('lockkeeper/', HEX(v_blocker))) IS NULL, NULL, v_blocker);
            END;
            IF v_before IS NULL AND v_blocker IS NOT NULL AND 4 <= p_bell THEN
                CALL lockkeeper_behind_4(v_blocker, 8 <= p_bell, v_looks, v_looked);
            END IF;
        END IF;
        IF v_before IS NOT NULL OR v_looked THEN
            -- Whoever is called need not know how long the line is, which takes the longer to count the longer it is.
            SET v_ahead = -1, v_ahead_waiting = -1;
        ELSE
            SELECT COUNT(*), IF(COALESCE(SUM(IF(v_edge < seq, weight, 0)), 0) + p_weight
                    <= LEAST(COALESCE(MIN(IF(v_edge < seq, capacity, NULL)), p_capacity), p_capacity),
                0, SUM(v_edge < seq))
            INTO v_ahead, v_ahead_waiting
            FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq < v_mine AND v_now < expires;
        END IF;
    END IF;
    SELECT v_held, v_counter, v_wanted, v_mine, v_ahead, v_ahead_waiting, COALESCE(v_expires - v_now, 0), 0, v_bell,
        v_before, IF(v_looks OR v_looked, v_blocker, NULL), v_looks;
END //

DROP PROCEDURE IF EXISTS lockkeeper_leave_4 //
-- Give up the lock, or the place, or nothing; let in whoever is next. p_seq is our number in line, if we know it. With
-- p_bell, then also our named lock, for which those behind us wait; answers whether this session had it.
CREATE PROCEDURE lockkeeper_leave_4(IN p_lock BINARY(32), IN p_id BINARY(16), IN p_seq BIGINT, IN p_bell BOOLEAN)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_last, v_head, v_edge, v_quiet, v_seq, v_weight, v_capacity, v_expires BIGINT;
    DECLARE v_alone BINARY(16);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT counter, head, edge, id INTO v_last, v_head, v_edge, v_alone
    FROM lockkeeper_lock WHERE `lock` = p_lock FOR UPDATE;
    IF v_alone IS NOT NULL THEN
        -- Nobody else is there.
        UPDATE lockkeeper_lock SET id = NULL WHERE `lock` = p_lock AND id = p_id;
    ELSEIF v_last IS NOT NULL THEN
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = p_seq AND id = p_id;
        IF ROW_COUNT() = 0 THEN
            DELETE FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock;
        ELSEIF v_head = p_seq AND v_edge = p_seq THEN
            -- Nobody else held.
            SET v_head = v_edge + 1;
            SELECT s.quiet, c.seq, c.weight, c.capacity, c.expires
            INTO v_quiet, v_seq, v_weight, v_capacity, v_expires
            FROM lockkeeper_claim AS c LEFT JOIN lockkeeper_store AS s ON s.one = 1
            WHERE c.`lock` = p_lock AND v_edge < c.seq ORDER BY c.seq LIMIT 1;
        END IF;
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        IF v_quiet <= v_now AND v_now < v_expires AND v_capacity <= v_weight THEN
            -- Whoever is next fills the room: there is nothing else to settle.
            SET v_last = GREATEST(v_last + 1, v_now DIV 1000);
            UPDATE lockkeeper_claim SET held = TRUE, since = v_now, counter = v_last
            WHERE `lock` = p_lock AND seq = v_seq;
            UPDATE lockkeeper_lock SET counter = v_last, head = v_seq, edge = v_seq WHERE `lock` = p_lock;
        ELSE
            BEGIN
                DECLARE v_in_use, v_room BIGINT;
                DECLARE v_waiting, v_empty BOOLEAN;
                CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
                    v_in_use, v_room, v_expires, v_waiting, v_empty);
                UPDATE lockkeeper_lock
                SET counter = v_last, head = v_head, edge = v_edge, closed = IF(v_empty, 0, 9223372036854775807)
                WHERE `lock` = p_lock;
            END;
        END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    IF p_bell THEN
        SELECT COALESCE(RELEASE_LOCK(CONCAT('lockkeeper/', HEX(p_id))), 0);
    END IF;
END //

DROP PROCEDURE IF EXISTS lockkeeper_break_4 //
-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE PROCEDURE lockkeeper_break_4(IN p_lock BINARY(32))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_last, v_head, v_edge, v_in_use, v_room, v_expires BIGINT;
    DECLARE v_alone, v_waiting, v_empty BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT counter, head, edge, id IS NOT NULL INTO v_last, v_head, v_edge, v_alone
    FROM lockkeeper_lock WHERE `lock` = p_lock FOR UPDATE;
    IF v_last IS NOT NULL THEN
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        IF v_alone THEN
            CALL lockkeeper_gather_4(p_lock, v_head, v_edge);
        END IF;
        CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
            v_in_use, v_room, v_expires, v_waiting, v_empty);
        SELECT l.name, v_now, c.held, c.counter, c.since, c.expires, c.weight, c.host, c.pid, c.owner, c.note,
            c.`lock`, c.seq, c.capacity
        FROM lockkeeper_claim AS c JOIN lockkeeper_lock AS l ON l.`lock` = c.`lock`
        WHERE c.`lock` = p_lock AND v_head <= c.seq AND c.seq <= v_edge ORDER BY c.seq;
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND v_head <= seq AND seq <= v_edge;
        CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
            v_in_use, v_room, v_expires, v_waiting, v_empty);
        UPDATE lockkeeper_lock
        SET counter = GREATEST(v_last, counter + 1), head = v_head, edge = v_edge,
            closed = IF(v_empty, 0, 9223372036854775807)
        WHERE `lock` = p_lock;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
END //

DROP PROCEDURE IF EXISTS lockkeeper_clean_4 //
-- Remove what dead processes left, and lock rows that nobody has used for p_idle. Does nothing if somebody cleaned
-- less than p_every ago; all processes may call it. Looks at p_most locks at most, in the order of their hashes, and
-- the next call goes on from there. Answers claims removed, lock rows removed, whether there is more to look at.
CREATE PROCEDURE lockkeeper_clean_4(IN p_every BIGINT, IN p_idle BIGINT, IN p_most INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_began BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    DECLARE v_from, v_to, v_stale BINARY(32) DEFAULT NULL;
    DECLARE v_claims, v_locks, v_seen BIGINT DEFAULT 0;
    DECLARE v_now, v_counter, v_head, v_edge, v_in_use, v_room, v_expires BIGINT;
    DECLARE v_waiting, v_empty, v_due BOOLEAN DEFAULT FALSE;
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
            SET v_counter = NULL;
            SELECT counter, head, edge INTO v_counter, v_head, v_edge
            FROM lockkeeper_lock WHERE `lock` = v_stale FOR UPDATE;
            DELETE FROM lockkeeper_claim WHERE `lock` = v_stale AND expires <= v_began;
            SET v_claims = v_claims + ROW_COUNT(), v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
            IF v_counter IS NOT NULL THEN
                CALL lockkeeper_settle_4(v_stale, v_now, v_counter, v_head, v_edge,
                    v_in_use, v_room, v_expires, v_waiting, v_empty);
                UPDATE lockkeeper_lock
                SET counter = v_counter, head = v_head, edge = v_edge, closed = IF(v_empty, 0, 9223372036854775807)
                WHERE `lock` = v_stale;
            END IF;
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
