import java.net.URI;
import javax.net.ssl.HttpsURLConnection;

/** Asks a URL and prints the answer, or the kind of error. */
public class Ask {
    public static void main(String[] words) throws Exception {
        var connection = (HttpsURLConnection) URI.create(words[0]).toURL().openConnection();
        try (var answer = connection.getInputStream()) {
            System.out.println(new String(answer.readAllBytes()));
        } catch (java.io.IOException error) {
            System.out.println(error.getClass().getSimpleName());
        }
    }
}
