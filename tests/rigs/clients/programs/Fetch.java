// Inside: both of Java's clients, with whatever trust store the JVM finds by itself.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import javax.net.ssl.HttpsURLConnection;

class Fetch {
    public static void main(String[] words) throws Exception {
        var address = URI.create("https://billing.example/v1/echo?page=2");
        var request = HttpRequest.newBuilder(address)
            .header("Authorization", "Bearer of-the-client").header("X-Kept", "yes").build();
        var modern = HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body();
        var opened = (HttpsURLConnection) address.toURL().openConnection();
        opened.setRequestProperty("Authorization", "Bearer of-the-client");
        opened.setRequestProperty("X-Kept", "yes");
        var old = new String(opened.getInputStream().readAllBytes());
        System.out.println("{\"modern\": " + modern + ", \"old\": " + old + "}");
    }
}
