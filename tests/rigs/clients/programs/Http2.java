// Inside: Java's HttpClient, which asks for HTTP/2 by itself, with many requests at once.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.stream.IntStream;

class Http2 {
    public static void main(String[] words) throws Exception {
        var client = HttpClient.newHttpClient();
        var said = HttpRequest.newBuilder(URI.create("https://node.example/v1/said"))
            .header("Authorization", "Bearer of-the-client").header("X-Kept", "yes").build();
        var first = client.send(said, BodyHandlers.ofString());
        var asked = IntStream.range(0, 20)
            .mapToObj(number -> client.sendAsync(said, BodyHandlers.ofString())).toList();
        for (var each : asked) {
            if (each.get().statusCode() != 200) throw new Exception("not answered");
        }
        var echo = HttpRequest.newBuilder(URI.create("https://node.example/v1/echo"))
            .POST(BodyPublishers.ofString("over".repeat(100000))).build();
        var back = client.send(echo, BodyHandlers.ofString());
        System.out.print("{\"version\": \"" + first.version() + "\", \"said\": \""
            + first.body().strip() + "\", \"echoed\": " + back.body().length() + "}");
    }
}
