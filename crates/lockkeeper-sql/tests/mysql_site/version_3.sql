-- The tables of version 3, with one lock that two share, of whom the second was let in and not told, and one waits for.
CREATE TABLE IF NOT EXISTS lockkeeper_lock (
    `lock` BINARY(32) NOT NULL PRIMARY KEY,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    counter BIGINT NOT NULL,
    closed BIGINT NOT NULL DEFAULT 0,
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

INSERT IGNORE INTO lockkeeper_store (one, version, cleaned) VALUES (1, 3, 0);

CREATE PROCEDURE lockkeeper_turn_3() SELECT 1;
CREATE PROCEDURE lockkeeper_settle_3() SELECT 1;
INSERT INTO lockkeeper_lock (`lock`, name, counter, closed, head, edge)
VALUES (UNHEX(SHA2('old', 256)), 'old', 9999999999999, 9223372036854775807, 7, 8);
INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 7, 'sixteen bytes id', TRUE, 9999999999998,
    9000000000000000000, 0, 1, 1, 4294967295, 'host', 1, NULL, NULL);
INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 8, 'the id not told_', TRUE, 0,
    9000000000000000000, 0, 1, 1, 4294967295, 'host', 1, NULL, NULL);
INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 9, 'sixteen other id', FALSE, 0,
    9000000000000000000, 0, 1, 4294967295, 4294967295, 'host', 1, NULL, NULL);
