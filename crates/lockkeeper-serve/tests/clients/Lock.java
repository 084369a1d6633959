import java.io.*;
import java.net.URI;
import java.net.http.*;

/** Hold a lock while this program works. Java 11 or newer, nothing to install: java Lock.java */
public class Lock {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(System.getenv("LOCKKEEPER_ADDRESS") + "/v1/locks/orders%2F42?wait=60s"))
            .header("Authorization", "Bearer " + System.getenv("LOCKKEEPER_TOKEN"))
            .POST(HttpRequest.BodyPublishers.noBody())
            .build();
        var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        var answer = client.send(request, HttpResponse.BodyHandlers.ofInputStream());
        try (var lock = new BufferedReader(new InputStreamReader(answer.body()))) {
            if (answer.statusCode() != 200) throw new IOException(lock.readLine()); // 409: not obtained in time
            var granted = lock.readLine(); // {"event":"granted","name":…,"fence":"…",…}
            System.out.println("held " + granted.replaceAll(".*\"fence\":\"(\\d+)\".*", "$1"));
            System.in.read(); // the work
        } // the stream is closed, so the lock is given back
        System.exit(0);
    }
}
