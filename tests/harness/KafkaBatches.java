import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;

/** Batches of Apache Kafka's own code: "write CODEC FILE" makes some, "read FILE" prints what a file holds,
 *  "judge FILE" prints for each batch how many records are read from it, or why none can be. */
public class KafkaBatches {
    private static String shown(ByteBuffer data) {
        if (data == null)
            return "null";
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static void print(MemoryRecords records) {
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                StringJoiner headers = new StringJoiner(",", "[", "]");
                for (Header header : record.headers())
                    headers.add(HexFormat.of().formatHex(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)) + "="
                        + (header.value() == null ? "null" : HexFormat.of().formatHex(header.value())));
                out.append(record.offset()).append(' ').append(record.timestamp()).append(' ').append(shown(record.key()))
                    .append(' ').append(shown(record.value())).append(' ').append(headers).append('\n');
            }
        }
        System.out.print(out);
    }

    private static void write(String codec, Path file) throws Exception {
        ByteBuffer all = ByteBuffer.allocate(4 << 20);
        long offset = 0;
        for (int count : new int[] {1, 10, 5000}) {
            ByteBuffer buffer = ByteBuffer.allocate(4 << 20);
            MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, (byte) 2,
                Compression.of(CompressionType.forName(codec)).build(), TimestampType.CREATE_TIME, offset);
            for (int i = 0; i < count; i++) {
                byte[] value = i % 11 == 0 ? null : ("value " + i + " ").repeat(i % 13).getBytes();
                Header[] headers = i % 3 == 0 ? new Header[0] : new Header[] {
                    new RecordHeader("name", null), new RecordHeader("\u00e4", ("x" + i).getBytes())};
                builder.append(1700000000000L + i * 37 % 101, i % 5 == 0 ? null : ("key" + i).getBytes(), value, headers);
            }
            all.put(builder.build().buffer());
            offset += count;
        }
        all.flip();
        byte[] bytes = new byte[all.remaining()];
        all.get(bytes);
        Files.write(file, bytes);
        print(MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)));
    }

    private static void judge(MemoryRecords records) {
        for (MutableRecordBatch batch : records.batches()) {
            try {
                batch.ensureValid();
                int count = 0;
                for (Record record : batch) {
                    record.ensureValid();
                    count++;
                }
                System.out.println(count);
            } catch (Throwable error) {
                System.out.println("refused " + error);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("write"))
            write(arguments[1], Path.of(arguments[2]));
        else if (arguments[0].equals("judge"))
            judge(MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[1])))));
        else
            print(MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[1])))));
    }
}
