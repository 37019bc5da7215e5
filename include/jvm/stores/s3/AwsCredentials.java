package tidemark;

import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;

/**
 * The credentials that the AWS SDK finds: environment, profile, web identity, role of the container
 * or machine. It renews temporary ones.
 *
 * <p>S3A closes the provider of each discarded file system. The SDK's `create()` returns a shared
 * provider, which could not renew credentials once closed. This class cannot be closed.
 */
public final class AwsCredentials implements AwsCredentialsProvider {

    private final DefaultCredentialsProvider provider = DefaultCredentialsProvider.builder().build();

    public static AwsCredentialsProvider create() {
        return new AwsCredentials();
    }

    public software.amazon.awssdk.auth.credentials.AwsCredentials resolveCredentials() {
        return provider.resolveCredentials();
    }
}
