// One process of a crowd that fights for the lock of a Java library; its words are those of ../README.md.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.Lock;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public final class Rival {
    /** The lock of one task. */
    interface Taker {
        void take() throws Exception;

        void giveBack() throws Exception;
    }

    record Round(int task, long asked, long had, long gave) {}

    private final FileChannel file;
    private final long offset;
    private final PrintStream out = new PrintStream(System.out, false);

    private Rival(String path, long offset) throws Exception {
        this.file = FileChannel.open(Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE);
        this.offset = offset;
    }

    private long now() {
        return System.nanoTime() + offset;
    }

    private static Callable<Taker> onRedis(String name, String place, String key, int ttl) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + place).setConnectionPoolSize(128);
        config.setLockWatchdogTimeout(ttl);
        RedissonClient client = Redisson.create(config);
        return () -> {
            Lock lock = switch (name) {
                case "redisson" -> client.getLock(key);
                case "redisson-fair" -> client.getFairLock(key);
                case "redisson-fenced" -> client.getFencedLock(key);
                default -> throw new IllegalArgumentException(name);
            };
            return new Taker() {
                @Override
                public void take() {
                    lock.lock();
                }

                @Override
                public void giveBack() {
                    lock.unlock();
                }
            };
        };
    }

    private static Callable<Taker> onZooKeeper(String place, String key, int ttl) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(place, ttl, ttl, new ExponentialBackoffRetry(100, 10));
        client.start();
        client.blockUntilConnected();
        return () -> {
            InterProcessMutex mutex = new InterProcessMutex(client, "/rivals/" + key);
            return new Taker() {
                @Override
                public void take() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void giveBack() throws Exception {
                    mutex.release();
                }
            };
        };
    }

    private void addOne() throws Exception {
        ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
        file.read(bytes, 0);
        bytes.putLong(0, bytes.getLong(0) + 1).rewind();
        file.write(bytes, 0);
    }

    private boolean fightAlone(int task, Taker taker, long until, List<Round> rounds) {
        while (true) {
            long asked = now();
            if (until <= asked) {
                return true;
            }
            try {
                taker.take();
                long had = now();
                addOne();
                long gave = now();
                rounds.add(new Round(task, asked, had, gave));
                taker.giveBack();
            } catch (Exception error) {
                System.err.println(error);
                return false;
            }
        }
    }

    private void fight(List<Taker> takers, long until) throws InterruptedException {
        List<List<Round>> parts = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        int[] refused = new int[takers.size()];
        for (int at = 0; at < takers.size(); at++) {
            int task = at;
            List<Round> part = new ArrayList<>();
            parts.add(part);
            threads.add(new Thread(() -> {
                refused[task] = fightAlone(task, takers.get(task), until, part) ? 0 : 1;
            }));
        }
        threads.forEach(Thread::start);
        int count = 0;
        int sum = 0;
        for (int at = 0; at < takers.size(); at++) {
            threads.get(at).join();
            count += parts.get(at).size();
            sum += refused[at];
        }
        StringBuilder text = new StringBuilder(count + " " + sum + "\n");
        for (List<Round> part : parts) {
            for (Round it : part) {
                text.append(it.task).append(' ').append(it.asked).append(' ').append(it.had);
                text.append(' ').append(it.gave).append('\n');
            }
        }
        say(text.toString());
    }

    private void say(String text) {
        out.print(text);
        out.flush();
    }

    public static void main(String[] words) throws Exception {
        String name = words[0];
        int ttl = Integer.parseInt(words[3]);
        Callable<Taker> maker = name.equals("curator")
            ? onZooKeeper(words[1], words[2], ttl)
            : onRedis(name, words[1], words[2], ttl);
        Rival rival = new Rival(words[5], Long.parseLong(words[6]));
        List<Taker> takers = new ArrayList<>();
        for (int at = 0; at < Integer.parseInt(words[4]); at++) {
            takers.add(maker.call());
        }
        rival.say("ready\n");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.startsWith("fight ")) {
                rival.fight(takers, Long.parseLong(line.substring(6)));
            } else {
                takers.get(0).take();
                rival.say(line.equals("hold") ? "held\n" : "had " + rival.now() + "\n");
            }
        }
        // Whoever holds need not say good-bye.
        Runtime.getRuntime().halt(0);
    }
}
