import javax.jms.BytesMessage;
import javax.jms.DeliveryMode;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import java.util.Locale;
import java.util.Random;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * An ordinary fast JMS client of ActiveMQ.
 *
 * <pre>
 * JmsClient produce URI QUEUE MESSAGES SIZE   persistent messages, sent asynchronously; the last one is sent
 *                                             synchronously, so its answer says that the broker has them all
 * JmsClient consume URI QUEUE MESSAGES SIZE   automatic acknowledgements, sent together (optimizeAcknowledge)
 * </pre>
 *
 * Prints one line of JSON. Every failure ends it with status 1 and a line on standard error.
 */
public final class JmsClient {
    private static final long WAIT_MS = 120_000;
    private static final int PREFETCH = 1000;

    private JmsClient() {}

    private static double produce(Session session, ActiveMQConnection connection, Queue queue, int messages, int size)
            throws Exception {
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        producer.setDisableMessageID(true);
        producer.setDisableMessageTimestamp(true);
        byte[] payload = new byte[size];
        Random random = new Random(1);
        random.nextBytes(payload);
        long started = System.nanoTime();
        for (int i = 0; i < messages; i++) {
            if (i == messages - 1) connection.setAlwaysSyncSend(true);
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(payload);
            producer.send(message);
        }
        return (System.nanoTime() - started) / 1e9;
    }

    private static double consume(Session session, Queue queue, int messages) throws Exception {
        MessageConsumer consumer = session.createConsumer(queue);
        long started = System.nanoTime();
        for (int i = 0; i < messages; i++) {
            Message message = consumer.receive(WAIT_MS);
            if (message == null) throw new IllegalStateException(i + " of " + messages + " messages came");
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        consumer.close(); // sends the acknowledgements that are still held back
        return seconds;
    }

    public static void main(String[] arguments) {
        try {
            String mode = arguments[0];
            int messages = Integer.parseInt(arguments[3]);
            int size = Integer.parseInt(arguments[4]);
            ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(arguments[1]);
            factory.setUseAsyncSend(true);
            factory.setOptimizeAcknowledge(true);
            factory.getPrefetchPolicy().setQueuePrefetch(PREFETCH);
            ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
            connection.start();
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(arguments[2]);
            double seconds = mode.equals("produce")
                    ? produce(session, connection, queue, messages, size)
                    : consume(session, queue, messages);
            connection.close();
            System.out.printf(Locale.ROOT, "{\"messages\": %d, \"seconds\": %.6f, \"rate\": %.1f}%n",
                    messages, seconds, messages / seconds);
        } catch (Exception error) {
            System.err.println("JmsClient: " + error);
            System.exit(1);
        }
        System.exit(0);
    }
}
